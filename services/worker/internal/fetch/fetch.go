// Package fetch copies the files of model versions from object stores to this
// machine. It caches them in a directory by the digest of their content, which the
// workers of a host share: one worker fetches, the others find the result.
//
// A content is in the directory completely or not at all. It is fetched to a
// temporary name, in parallel ranges that resume when a connection breaks or the
// process dies, verified against its digest, synced to disk, and only then
// renamed. While somebody reads a content, a lock protects it from removal.
package fetch

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Config says where files are kept and how they are fetched.
type Config struct {
	// Dir is the directory. It is made when it is needed.
	Dir string
	// Bytes bounds what it holds; 0 is as much as the disk has.
	Bytes int64
	// Concurrency is how many ranges are fetched at the same time, at least 1.
	Concurrency int
	// StallTimeout is for how long a fetch is tried again that does not get on.
	StallTimeout time.Duration
}

// Fetcher is a source of files that are elsewhere. It is safe for concurrent
// use.
type Fetcher struct {
	config  Config
	origin  Origin
	log     *zap.Logger
	metrics *metrics
	slots   chan struct{} // a range that is fetched holds one
}

var _ source.Source = (*Fetcher)(nil)

// New makes a fetcher. It opens nothing. log and registry may be nil; the error
// is that of metrics which are registered already.
func New(c Config, origin Origin, log *zap.Logger, registry prometheus.Registerer) (*Fetcher, error) {
	if log == nil {
		log = zap.NewNop()
	}
	m, err := newMetrics(registry)
	if err != nil {
		return nil, err
	}
	return &Fetcher{config: c, origin: origin, log: log, metrics: m, slots: make(chan struct{}, c.Concurrency)}, nil
}

// Fetch implements [source.Source].
func (f *Fetcher) Fetch(ctx context.Context, c source.Content, progress func(source.Progress)) (source.Files, error) {
	key, err := keyOf(c)
	if err != nil {
		return nil, err
	}
	dir := directory(f.config.Dir)
	if err := dir.make(); err != nil {
		return nil, notKept(err)
	}
	for looked := false; ; looked = true {
		files, err := f.kept(ctx, dir, key, c, progress)
		if files != nil || err != nil {
			if !looked && err == nil {
				f.metrics.lookups.WithLabelValues("hit").Inc()
			}
			return files, err
		}
		if !looked {
			f.metrics.lookups.WithLabelValues("miss").Inc()
		}
		if err := f.bring(ctx, dir, key, c, progress); err != nil {
			return nil, err
		}
	}
}

// kept finds a content in the directory; nil if it is not there. One that was
// damaged is removed.
func (f *Fetcher) kept(ctx context.Context, dir directory, key string, c source.Content, progress func(source.Progress)) (source.Files, error) {
	lock, err := acquire(ctx, dir.lockOf(key), shared, waits(c, progress))
	if err != nil {
		return nil, notKept(err)
	}
	place := dir.content(key)
	if _, err := os.Stat(place); err != nil {
		return nil, lock.release()
	}
	files := &keptFiles{Files: source.Directory(place, versionIn(place, c), c.Digest, dir.vouched(key)), lock: lock}
	err = files.Verify(ctx)
	if err == nil {
		dir.used(ctx, key, c)
		return files, nil
	}
	if errs.Of(err) != errs.FilesChanged {
		return nil, errors.Join(err, lock.release())
	}
	f.log.Warn("files in the cache are damaged: they are fetched again", zap.String("content", key))
	if err := lock.release(); err != nil {
		return nil, notKept(err)
	}
	removed, err := dir.remove(key)
	if err == nil && !removed {
		err = errs.New(errs.FilesChanged, "the files of %s in the cache are damaged, and another worker of this host uses them: unload the model there, "+
			"and see who writes to %s; they are fetched again when nobody uses them", c.URL, dir.content(key))
	}
	return nil, err
}

// waits returns what reports that others are at work on a content.
func waits(c source.Content, progress func(source.Progress)) func() {
	if progress == nil {
		return nil
	}
	return func() { progress(source.Progress{Text: "another worker of this host is fetching " + c.URL}) }
}

// keptFiles are those of a content in the directory, locked.
type keptFiles struct {
	source.Files
	lock *lock
}

func (k *keptFiles) Close() error { return k.lock.release() }

// bring fetches a content, alone of all processes, and tries again what may
// pass: for as long as it gets on, and for a while when it does not.
func (f *Fetcher) bring(ctx context.Context, dir directory, key string, c source.Content, progress func(source.Progress)) error {
	lock, err := acquire(ctx, dir.lockOf(key), exclusive, waits(c, progress))
	if err != nil {
		return notKept(err)
	}
	defer func() { _ = lock.release() }() // the file is closed with the process at the latest
	if _, err := os.Stat(dir.content(key)); err == nil {
		return nil // another was faster
	}
	started := time.Now()
	d := &download{fetcher: f, dir: dir, key: key, content: c, progress: progress}
	err = f.persist(ctx, d)
	if ctx.Err() == nil { // else nobody wants it any more
		f.metrics.finished(err, time.Since(started))
	}
	if err == nil {
		f.log.Info("files fetched", zap.String("url", c.URL), zap.Int64("bytes", d.total), zap.Int64("resumed_bytes", d.resumed), zap.Duration("took", time.Since(started)))
	}
	return err
}

// Pauses between attempts: doubled from the first to the last.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

func (f *Fetcher) persist(ctx context.Context, d *download) error {
	pause, since, before := firstPause, time.Now(), int64(0)
	for {
		err := d.run(ctx)
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		f.metrics.failures.WithLabelValues(string(errs.Of(err))).Inc()
		if got := d.done.Load(); got > before {
			pause, since, before = firstPause, time.Now(), got
		}
		if time.Since(since) >= f.config.StallTimeout {
			return err
		}
		wait := pause - rand.N(pause/4) // so that not all ask again at once
		f.log.Warn("files not fetched yet", append(obs.Err(err), zap.String("url", d.content.URL), zap.Duration("retry_in", wait))...)
		d.report(source.Progress{Text: errs.From(err).Msg, Reason: errs.Of(err)})
		lifecycle.Pause(ctx, wait)
		pause = min(2*pause, lastPause)
	}
}

// passing reports whether a failure is a store's, which may pass.
func passing(err error) bool {
	switch errs.Of(err) {
	case errs.StoreDenied, errs.StoreNotFound, errs.StoreUnreachable, errs.StoreTruncated, errs.StoreThrottled:
		return true
	}
	return false
}

func notKept(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errs.Wrap(errs.CacheFull, err, "the disk of the cache is full: %v: free space on it, or bound the cache by --cache-bytes", err)
	}
	return errs.Wrap(errs.LoadFailed, err, "the model's files cannot be kept in the cache: %v: see --cache-dir", err)
}

// versionIn is the version's directory within a content's.
func versionIn(place string, c source.Content) string { return filepath.Join(place, versionName(c)) }
