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
	"time"
)

// ErrChanged says that a file changed since it was listed, or while it was
// read.
var ErrChanged = errors.New("changed while it was read")

// Digester digests trees. It remembers files by their stamps, since models are
// large and rarely change. It is not safe for concurrent use.
type Digester struct {
	from  Files
	known map[string]hashed
	round int // counts sweeps
}

type hashed struct {
	stamp stamp
	sum   [sha256.Size]byte
	round int // the last in which the file was met
}

// NewDigester makes a digester of files that remembers none.
func NewDigester(from Files) *Digester { return &Digester{from: from, known: make(map[string]hashed)} }

// Sweep forgets files that were not met since the last sweep.
func (d *Digester) Sweep() {
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
	if known, ok := d.known[key]; ok && known.stamp == f.stamp {
		known.round = d.round
		d.known[key] = known
		return known.sum, nil
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
		d.known[key] = hashed{stamp: f.stamp, sum: sum, round: d.round}
	}
	return sum, nil
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
