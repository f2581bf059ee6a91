package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// download is the fetch of one content by who holds its lock.
type download struct {
	fetcher  *Fetcher
	dir      directory
	key      string
	content  source.Content
	progress func(source.Progress)

	total, resumed int64
	fingerprint    string       // of what was verified
	done           atomic.Int64 // bytes that are on the disk, or came at some time

	mu       sync.Mutex
	reported time.Time     // guarded by mu
	reached  map[int]int64 // how much of a span has come, where it is not all; guarded by mu
	title    string        // of the list that the spans are of
}

// run fetches what is missing, and puts the content into its place if it is the
// right one.
func (d *download) run(ctx context.Context) error {
	for {
		files, err := d.fetcher.origin.List(ctx, d.content)
		if err != nil {
			return err
		}
		resumed, err := d.bring(ctx, files)
		if err != nil {
			return err
		}
		right, err := d.verify(ctx)
		if err != nil {
			return err
		}
		if right {
			return d.keep()
		}
		d.title = "" // nothing is there any more
		if err := os.RemoveAll(d.dir.partial(d.key)); err != nil {
			return notKept(err)
		}
		if !resumed { // else what a crash left may be at fault
			return changed(d.content, "or came damaged")
		}
	}
}

func (d *download) files() string { return filepath.Join(d.dir.partial(d.key), "files") }

// bring has all bytes on the disk. resumed says that some were there before.
func (d *download) bring(ctx context.Context, files []File) (resumed bool, err error) {
	journal, have, err := d.open(files)
	if err != nil {
		return false, notKept(err)
	}
	defer func() { err = errors.Join(err, journal.close()) }()
	parts := spans(files)
	d.total, d.resumed = 0, 0
	for n, p := range parts {
		d.total += p.length
		if have[n] {
			d.resumed += p.length
		}
	}
	d.done.Store(max(d.done.Load(), d.resumed))
	var open []*os.File
	defer func() {
		for _, file := range open {
			err = errors.Join(err, file.Close())
		}
	}()
	err = d.fetcher.reserve(ctx, d.dir, d.key, d.total, func() (err error) {
		open, err = d.lay(files)
		return err
	})
	if err != nil {
		return false, err
	}
	if err := d.receive(ctx, files, parts, have, open, journal); err != nil {
		return false, err
	}
	for _, file := range open {
		if err := file.Sync(); err != nil {
			return false, notKept(err)
		}
	}
	return len(have) > 0, nil
}

// open opens the journal of what is fetched. Files of another list are removed:
// they may be larger, or more.
func (d *download) open(files []File) (*journal, map[int]bool, error) {
	if err := os.MkdirAll(d.dir.partial(d.key), 0o700); err != nil {
		return nil, nil, err
	}
	journal, have, err := openJournal(d.dir.ranges(d.key), files)
	if err != nil {
		return nil, nil, err
	}
	if title := nameOf(files); title != d.title {
		d.title, d.reached = title, make(map[int]int64)
		if len(have) == 0 {
			err = os.RemoveAll(d.files())
		}
	}
	if err = errors.Join(err, os.MkdirAll(d.files(), 0o700)); err != nil {
		return nil, nil, errors.Join(err, journal.close())
	}
	return journal, have, nil
}

// lay makes the files in their full size, and opens them.
func (d *download) lay(files []File) (open []*os.File, err error) {
	for _, f := range files {
		if !local(f.Name) {
			return open, fmt.Errorf("%q is no name of a file in a model's directory", f.Name)
		}
		name := filepath.Join(d.files(), filepath.FromSlash(f.Name))
		if strings.HasSuffix(f.Name, "/") {
			if err := os.MkdirAll(name, 0o700); err != nil {
				return open, err
			}
			name = filepath.Join(d.dir.partial(d.key), "nothing") // keeps its place in the list
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return open, err
		}
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return open, err
		}
		open = append(open, file)
		if err := allocate(file, f.Size); err != nil {
			return open, err
		}
	}
	return open, nil
}

// receive fetches the spans that are missing, several at a time.
func (d *download) receive(ctx context.Context, files []File, parts []span, have map[int]bool, open []*os.File, journal *journal) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(cap(d.fetcher.slots))
	for n, p := range parts {
		if have[n] {
			continue
		}
		group.Go(func() error {
			select {
			case d.fetcher.slots <- struct{}{}:
			case <-within.Done():
				return within.Err()
			}
			defer func() { <-d.fetcher.slots }()
			if err := d.span(within, n, files[p.file], p, open[p.file]); err != nil {
				return err
			}
			return notKeptOr(journal.add(n))
		})
	}
	return group.Wait()
}

// spanAttempts is how often a span is asked for in a row.
const spanAttempts = 4

// span fetches the span of the given number. Each attempt goes on where the one
// before it ended, also that of an earlier run.
func (d *download) span(ctx context.Context, number int, f File, p span, to *os.File) error {
	d.mu.Lock()
	at := d.reached[number]
	d.mu.Unlock()
	for failed := 1; at < p.length; failed++ {
		n, err := d.part(ctx, f, span{p.file, p.offset + at, p.length - at}, to)
		at += n
		d.mu.Lock()
		d.reached[number] = at
		d.mu.Unlock()
		if err == nil || failed == spanAttempts || ctx.Err() != nil || !passing(err) || errs.Of(err) == errs.StoreDenied {
			return err
		}
		lifecycle.Pause(ctx, 50*time.Millisecond<<failed)
	}
	return nil
}

func (d *download) part(ctx context.Context, f File, p span, to *os.File) (int64, error) {
	body, err := f.Open(ctx, p.offset, p.length)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	w := &counted{to: io.NewOffsetWriter(to, p.offset), download: d}
	_, err = io.CopyBuffer(w, body, make([]byte, 256<<10))
	if w.failed != nil {
		return w.bytes, notKept(w.failed)
	}
	return w.bytes, err
}

// counted writes and counts.
type counted struct {
	to       io.Writer
	download *download
	bytes    int64
	failed   error // of a write
}

func (c *counted) Write(p []byte) (n int, err error) {
	n, c.failed = c.to.Write(p)
	c.bytes += int64(n)
	c.download.count(int64(n))
	return n, c.failed
}

func (d *download) count(n int64) {
	d.fetcher.metrics.received.Add(float64(n))
	done := d.done.Add(n)
	d.mu.Lock()
	due := time.Since(d.reported) > progressInterval
	d.mu.Unlock()
	if due {
		d.report(source.Progress{Text: fmt.Sprintf("fetching %s: %d of %d MB", d.content.URL, min(done, d.total)/1e6, d.total/1e6)})
	}
}

// progressInterval is how often progress is reported.
const progressInterval = 2 * time.Second

func (d *download) report(p source.Progress) {
	d.mu.Lock()
	d.reported = time.Now()
	d.mu.Unlock()
	if d.progress != nil {
		d.progress(p)
	}
}

// verify reports whether what came is the content that was asked for, and notes
// by what it is known again.
func (d *download) verify(ctx context.Context) (bool, error) {
	tree, err := modelfiles.List(ctx, modelfiles.Local{}, d.files(), versionIn(d.files(), d.content))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, notKept(err)
	}
	digest, err := modelfiles.NewDigester(modelfiles.Local{}).Digest(ctx, tree)
	if err != nil {
		return false, notKept(err)
	}
	// Listed once more, since files of this moment have no fingerprint.
	if tree, err = modelfiles.List(ctx, modelfiles.Local{}, d.files(), versionIn(d.files(), d.content)); err != nil {
		return false, notKept(err)
	}
	d.fingerprint = tree.Fingerprint()
	return digest == d.content.Digest, nil
}

// keep puts the content into its place.
func (d *download) keep() error {
	if err := d.dir.write(d.key, note{Bytes: d.total, Fingerprint: d.fingerprint}); err != nil {
		return notKept(err)
	}
	err := syncDirs(d.files())
	if err == nil {
		err = os.Rename(d.files(), d.dir.content(d.key))
	}
	if err == nil {
		err = syncDir(filepath.Dir(d.dir.content(d.key)))
	}
	return notKeptOr(errors.Join(err, os.RemoveAll(d.dir.partial(d.key))))
}

// syncDirs has the names in all directories below one on the disk.
func syncDirs(dir string) error {
	return filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return syncDir(name)
	})
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
