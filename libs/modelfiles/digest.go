package modelfiles

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
	"sync"
	"time"
)

// ErrChanged says that a file changed since it was listed, or while it was
// read.
var ErrChanged = errors.New("changed while it was read")

// Digester digests trees. It remembers files by their stamps, because models are large and
// rarely change. It is safe for concurrent use: two concurrent callers both read the same file.
type Digester struct {
	from Files

	mu    sync.Mutex
	known map[string]hashed // guarded by mu
	round int               // counts sweeps; guarded by mu
}

type hashed struct {
	stamp stamp
	sum   [sha256.Size]byte
	round int // the last in which the file was met
}

// NewDigester makes a digester of files that remembers none.
func NewDigester(from Files) *Digester { return &Digester{from: from, known: make(map[string]hashed)} }

// Sweep forgets files that were not seen since the last sweep.
func (d *Digester) Sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, h := range d.known {
		if h.round != d.round {
			delete(d.known, path)
		}
	}
	d.round++
}

// Digest names the tree's content, as algorithm:hex, from the names and bytes
// of its files. The error is [ErrChanged] if these are not those that were
// listed. ctx ends a long read.
func (d *Digester) Digest(ctx context.Context, t *Tree) (string, error) {
	total := sha256.New()
	for i := range t.files {
		f := &t.files[i]
		sum, err := d.sum(ctx, f.path, f, sha256.New())
		if err != nil {
			return "", err
		}
		// Lengths before names, so that no two lists of files read alike.
		total.Write(binary.AppendUvarint(nil, uint64(len(f.name))))
		total.Write([]byte(f.name))
		total.Write(sum[:])
	}
	return "sha256:" + hex.EncodeToString(total.Sum(nil)), nil
}

// MD5 is the MD5 digest of one file, which info describes.
func (d *Digester) MD5(ctx context.Context, path string, info fs.FileInfo) ([md5.Size]byte, error) {
	sum, err := d.sum(ctx, "md5\x00"+path, &file{path: path, stamp: stampOf(info)}, md5.New()) //nolint:gosec // not for security: the format's own checksum
	return [md5.Size]byte(sum[:]), err
}

// sum digests a file, unless it is remembered under the key, and remembers it.
func (d *Digester) sum(ctx context.Context, key string, f *file, h hash.Hash) (sum [sha256.Size]byte, err error) {
	if sum, ok := d.recall(key, f); ok {
		return sum, nil
	}
	if sum, ok := d.stored(ctx, key, f); ok {
		d.remember(key, f, sum)
		return sum, nil
	}
	started := time.Now()
	if err := d.read(ctx, f.path, h); err != nil {
		return sum, err
	}
	copy(sum[:], h.Sum(nil))
	after, err := d.from.Stat(f.path)
	if err != nil {
		return sum, err
	}
	if stampOf(after) != f.stamp {
		return sum, fmt.Errorf("%s %w", f.path, ErrChanged)
	}
	if !f.stamp.fresh(started) {
		d.remember(key, f, sum)
	}
	return sum, nil
}

func (d *Digester) recall(key string, f *file) (sum [sha256.Size]byte, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h, ok := d.known[key]
	if !ok || h.stamp != f.stamp {
		return sum, false
	}
	h.round = d.round
	d.known[key] = h
	return h.sum, true
}

func (d *Digester) remember(key string, f *file, sum [sha256.Size]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[key] = hashed{stamp: f.stamp, sum: sum, round: d.round}
}

// summed is a store that may know digests of its files.
type summed interface {
	// SHA256 is that of a file, if known.
	SHA256(ctx context.Context, name string) (sum [sha256.Size]byte, known bool)
}

// stored asks the store for a file's digest.
func (d *Digester) stored(ctx context.Context, key string, f *file) (sum [sha256.Size]byte, known bool) {
	if s, ok := d.from.(summed); ok && key == f.path {
		return s.SHA256(ctx, f.path)
	}
	return sum, false
}

func (d *Digester) read(ctx context.Context, path string, h hash.Hash) error {
	opened, err := d.from.Open(path)
	if err != nil {
		return err
	}
	defer opened.Close()
	// A long read ends with its context: nobody can read a closed file.
	defer context.AfterFunc(ctx, func() { opened.Close() })()
	_, err = io.Copy(h, opened)
	if err := ctx.Err(); err != nil {
		return err
	}
	return err
}
