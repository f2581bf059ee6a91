package repo

import (
	"context"
	"crypto/md5" //nolint:gosec // the checksum agent's digest, not for security
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"
	"time"
)

// Bounds of one version directory. They stop loops of links and a repository
// path that was meant to be another.
const (
	maxFiles = 100_000
	maxDepth = 32
)

// settled is how old a modification must be for its time to identify the
// content: a second write within the file system's time resolution would go
// unnoticed.
const settled = 2 * time.Second

// digester names the content of directories. It remembers files by path, size
// and modification time, since models are large and rarely change.
type digester struct {
	from Files
	// shallow opens the files of versions but reads none: their digests then
	// tell names apart, not contents.
	shallow bool
	known   map[string]hashed
	round   int // counts sweeps

	// Since the last call of watch:
	newest time.Time // the latest modification that was met
	torn   bool      // a file changed while it was read
}

type hashed struct {
	size  int64
	mtime time.Time
	sum   [sha256.Size]byte
	round int // the last in which the file was met
}

func newDigester(from Files, shallow bool) *digester {
	return &digester{from: from, shallow: shallow, known: make(map[string]hashed)}
}

// watch begins to note how recent modifications are.
func (d *digester) watch() { d.newest, d.torn = time.Time{}, false }

// note takes a modification time in.
func (d *digester) note(modified time.Time) {
	if modified.After(d.newest) {
		d.newest = modified
	}
}

// sweep forgets files that were not met since the last sweep.
func (d *digester) sweep() {
	for path, h := range d.known {
		if h.round != d.round {
			delete(d.known, path)
		}
	}
	d.round++
}

// version digests the names and contents of all that is loaded for a version
// of the model in dir: the regular files below the version's own directory and
// below those that all versions share, in the order of their names. Links are
// followed.
func (d *digester) version(ctx context.Context, dir, version string) (string, error) {
	w := &dirWalk{digester: d}
	if err := w.walk(ctx, filepath.Join(dir, version), "", 0); err != nil {
		return "", err
	}
	for _, shared := range []string{initialStateDir, warmupDir} {
		// No file of the version has a name that begins so.
		err := w.walk(ctx, filepath.Join(dir, shared), "../"+shared+"/", 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	total := sha256.New()
	for _, f := range w.files {
		// Lengths before names, so that no two lists of files read alike.
		total.Write(binary.AppendUvarint(nil, uint64(len(f.name))))
		total.Write([]byte(f.name))
		total.Write(f.sum[:])
	}
	return "sha256:" + hex.EncodeToString(total.Sum(nil)), nil
}

// dirWalk is one call of directory.
type dirWalk struct {
	digester *digester
	files    []namedSum
}

type namedSum struct {
	name string // relative, with slashes
	sum  [sha256.Size]byte
}

func (w *dirWalk) walk(ctx context.Context, dir, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s is nested deeper than %d directories", dir, maxDepth)
	}
	entries, err := w.digester.from.ReadDir(dir) // sorted by name
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := w.entry(ctx, filepath.Join(dir, entry.Name()), prefix+entry.Name(), depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *dirWalk) entry(ctx context.Context, path, name string, depth int) error {
	info, err := w.digester.from.Stat(path)
	if err != nil {
		return err // a dangling link among them
	}
	if info.IsDir() {
		return w.walk(ctx, path, name+"/", depth+1)
	}
	if !info.Mode().IsRegular() {
		return nil // a socket or pipe holds no model
	}
	if len(w.files) == maxFiles {
		return fmt.Errorf("there are more than %d files", maxFiles)
	}
	w.digester.note(info.ModTime())
	sum, err := w.digester.file(ctx, path, info)
	if err != nil {
		return err
	}
	w.files = append(w.files, namedSum{name: name, sum: sum})
	return nil
}

// file digests one file, from memory if it is as it was.
func (d *digester) file(ctx context.Context, path string, info fs.FileInfo) (sum [sha256.Size]byte, err error) {
	if !d.shallow {
		return d.sum(ctx, path, path, info, sha256.New())
	}
	file, err := d.from.Open(path)
	if err != nil {
		return sum, err
	}
	return sum, file.Close()
}

// md5 is the MD5 digest of one file.
func (d *digester) md5(ctx context.Context, path string, info fs.FileInfo) ([md5.Size]byte, error) {
	sum, err := d.sum(ctx, "md5\x00"+path, path, info, md5.New()) //nolint:gosec // not for security: the format's own checksum
	return [md5.Size]byte(sum[:]), err
}

// sum digests a file and remembers that under a key.
func (d *digester) sum(ctx context.Context, key, path string, info fs.FileInfo, h hash.Hash) (sum [sha256.Size]byte, err error) {
	if h, ok := d.known[key]; ok && h.size == info.Size() && h.mtime.Equal(info.ModTime()) {
		h.round = d.round
		d.known[key] = h
		return h.sum, nil
	}
	started := time.Now()
	if err := d.hashFile(ctx, path, h); err != nil {
		return sum, err
	}
	copy(sum[:], h.Sum(nil))
	after, err := d.from.Stat(path)
	if err != nil {
		return sum, err
	}
	if after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		d.torn = true
		return sum, fmt.Errorf("%s changed while it was read", path)
	}
	if started.Sub(info.ModTime()) > settled {
		d.known[key] = hashed{size: info.Size(), mtime: info.ModTime(), sum: sum, round: d.round}
	}
	return sum, nil
}

func (d *digester) hashFile(ctx context.Context, path string, h hash.Hash) error {
	file, err := d.from.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	// A long read ends with its context: nobody can read a closed file.
	defer context.AfterFunc(ctx, func() { file.Close() })()
	_, err = io.Copy(h, file)
	return err
}
