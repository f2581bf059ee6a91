package fetch

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
)

// spare is how many bytes of the disk are left to others.
const spare = 64 << 20

// reserve makes room for bytes that are to be written, by removing contents
// that nobody reads, those first whose last use is longest ago. then takes the
// room while nobody else makes any.
func (f *Fetcher) reserve(ctx context.Context, dir directory, key string, bytes int64, then func() error) error {
	lock, err := acquire(ctx, dir.lockOf("room"), exclusive, nil)
	if err != nil {
		return notKept(err)
	}
	defer func() { _ = lock.release() }() // it only read and removed
	if err := dir.sweep(key); err != nil {
		return err
	}
	kept, used, err := dir.list(key)
	if err != nil {
		return notKept(err)
	}
	// What was reserved before a crash has its room already.
	taken := roomOf(dir.partial(key))
	lacking := func() (int64, error) {
		free, err := freeBytes(string(dir))
		if err != nil {
			return 0, err
		}
		short := bytes - min(taken, bytes) + spare - free
		if f.config.Bytes > 0 {
			short = max(short, used+bytes-f.config.Bytes)
		}
		return short, nil
	}
	short, err := lacking()
	for _, k := range kept {
		if err != nil {
			return notKept(err)
		}
		if short <= 0 || short > removable(kept) {
			break // what does not fit in any case costs others nothing
		}
		if err := f.evict(dir, k, &used); err != nil {
			return err
		}
		short, err = lacking()
	}
	if err != nil {
		return notKept(err)
	}
	if short > 0 {
		return errs.New(errs.CacheFull, "the files have %d bytes, and %d too many are in use: raise --cache-bytes, which is %d, free space on the disk of %s, or load fewer models", bytes, short, f.config.Bytes, dir)
	}
	f.metrics.bytes.Set(float64(used + bytes))
	return notKeptOr(then())
}

// evict removes what is kept, unless somebody is at work on it.
func (f *Fetcher) evict(dir directory, k kept, used *int64) error {
	remove := dir.remove
	if k.partial {
		remove = dir.removePartial
	}
	removed, err := remove(k.key)
	if err != nil || !removed {
		return err
	}
	*used -= k.bytes
	f.metrics.evictions.Inc()
	f.log.Info("files removed from the cache", zap.String("content", k.key), zap.Int64("bytes", k.bytes), zap.Bool("partial", k.partial))
	return nil
}

func removable(all []kept) (bytes int64) {
	for _, k := range all {
		bytes += k.bytes
	}
	return bytes
}

func notKeptOr(err error) error {
	if err == nil {
		return nil
	}
	return notKept(err)
}

// kept is a content, or what there is of one whose fetch has not come to its
// end.
type kept struct {
	key     string
	partial bool
	bytes   int64
	used    time.Time
}

// list lists what is kept by its last use, the oldest first, but for one that is
// being fetched, and counts the bytes.
func (d directory) list(but string) (all []kept, used int64, err error) {
	contents, err := os.ReadDir(filepath.Join(string(d), "contents"))
	if err != nil {
		return nil, 0, err
	}
	for _, entry := range contents {
		k := kept{key: entry.Name(), bytes: d.read(entry.Name()).Bytes, used: modified(d.note(entry.Name()))}
		if k.bytes == 0 { // its note is lost
			if k.bytes, err = bytesBelow(d.content(k.key)); err != nil {
				return nil, 0, err
			}
		}
		all = append(all, k)
	}
	partial, err := os.ReadDir(filepath.Join(string(d), "partial"))
	if err != nil {
		return nil, 0, err
	}
	for _, entry := range partial {
		if entry.Name() == but {
			continue
		}
		k := kept{key: entry.Name(), partial: true, used: modified(d.ranges(entry.Name()))}
		if k.bytes, err = bytesBelow(d.partial(k.key)); err != nil {
			return nil, 0, err
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), strings.Compare(a.key, b.key)) })
	return all, removable(all), nil
}

// modified is when a file was written last; long ago if it is not there.
func modified(name string) (t time.Time) {
	if info, err := os.Stat(name); err == nil {
		t = info.ModTime()
	}
	return t
}

// abandoned is for how long a fetch that ended in its middle may be resumed,
// where nothing else needs the room.
const abandoned = 24 * time.Hour

// sweep removes what nobody is fetching and nobody will go on to fetch.
func (d directory) sweep(but string) error {
	entries, err := os.ReadDir(filepath.Join(string(d), "partial"))
	if err != nil {
		return notKept(err)
	}
	for _, entry := range entries {
		key := entry.Name()
		if key == but || !strings.HasSuffix(key, goneSuffix) && time.Since(modified(d.ranges(key))) < abandoned {
			continue
		}
		if _, err := d.removePartial(key); err != nil {
			return err
		}
	}
	return nil
}

func bytesBelow(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // renamed or removed meanwhile
			}
			return err
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total, err
}

// roomOf is how much of the disk the files below a directory take.
func roomOf(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error { // what cannot be looked at has none
		var s unix.Stat_t
		if err == nil && entry.Type().IsRegular() && unix.Lstat(name, &s) == nil {
			total += s.Blocks * 512
		}
		return nil
	})
	return total
}

func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}
