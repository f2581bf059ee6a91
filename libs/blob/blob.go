// Package blob reads and writes object stores: S3 and compatible servers, Google
// Cloud Storage, Azure Blob Storage, and directories that stand in for them.
//
// Every read names the ETag from a listing, so that bytes of two contents never
// mix. Errors have one of the reasons store_denied, store_not_found,
// store_unreachable, store_truncated, store_throttled and files_changed. Their
// texts suggest a remedy and contain no secrets.
//
// The package is its own module, so that programs that read no models do not
// link the providers' SDKs.
package blob

import (
	"cmp"
	"context"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Object is one object as a listing showed it.
type Object struct {
	// Name is the object's key relative to the directory that was listed, in
	// shortest form and within it.
	Name string
	// ETag identifies the content: equal ETags of one name mean equal contents.
	ETag string
	// Size is in bytes.
	Size int64
	// Modified is the time of the write, according to the store.
	Modified time.Time
}

// Dir is the part of a bucket below a prefix. It is safe for concurrent use.
type Dir struct {
	bucket *bucket
	at     Location
}

// URL is the directory's, as [Parse] reads it.
func (d *Dir) URL() string { return d.at.String() }

// pageSize is how many keys a listing asks for at a time; no store gives more.
const pageSize = 1000

// List lists all objects below the directory's subdirectory sub, which is
// empty for all of it, in the order of their keys. Keys that are no paths, such
// as those with empty or dotted parts, are left out. An empty list is no error.
func (d *Dir) List(ctx context.Context, sub string) ([]Object, error) {
	below := d.at.key(sub)
	if below != "" {
		below += "/"
	}
	var all []Object
	for token := ""; ; {
		found, next, err := d.page(ctx, below, token)
		if err != nil {
			return nil, err
		}
		for _, o := range found {
			o.Name = strings.TrimPrefix(o.Name, d.at.below())
			if clean := strings.TrimSuffix(o.Name, "/"); clean == "" || path.Clean(clean) != clean || !filepath.IsLocal(clean) {
				continue
			}
			o.ETag = cmp.Or(o.ETag, syntheticETag(o))
			all = append(all, o)
		}
		if next == "" {
			return all, nil
		}
		token = next
	}
}

// page lists up to a page of keys, in the time that a read may stall: its caller
// waits, and no response takes as long.
func (d *Dir) page(ctx context.Context, prefix, token string) (found []Object, next string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.bucket.stall, errStalled)
	defer cancel()
	found, next, err = d.bucket.list(ctx, prefix, token)
	if err != nil {
		return nil, "", d.wrapError(ctx, "list", err)
	}
	return found, next, nil
}

// Open reads length bytes of an object from an offset, if it is still the listed one: otherwise
// the reason is files_changed. The reader fails with store_truncated if it ends too early, and
// with store_unreachable if nothing comes for a while.
func (d *Dir) Open(ctx context.Context, o Object, offset, length int64) (io.ReadCloser, error) {
	if length <= 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	watch := time.AfterFunc(d.bucket.stall, func() { cancel(errStalled) })
	tag := o.ETag
	if isSynthetic(tag) {
		tag = ""
	}
	body, served, err := d.bucket.read(ctx, d.at.key(o.Name), tag, offset, length)
	if err == nil && tag != "" && served != "" && served != tag { // not every server heeds the condition
		_ = body.Close()
		err = errChanged
	}
	if err != nil {
		watch.Stop()
		err = d.wrapError(ctx, "read "+o.Name, err)
		cancel(nil)
		return nil, err
	}
	return &reader{dir: d, name: o.Name, body: body, left: length, ctx: ctx, cancel: cancel, watch: watch}, nil
}

// reader reads a range and makes sure that it is whole.
type reader struct {
	dir    *Dir
	name   string
	body   io.ReadCloser
	left   int64
	ctx    context.Context // of the request, whose body is read
	cancel context.CancelCauseFunc
	watch  *time.Timer // ends the request when nothing comes
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	r.watch.Reset(r.dir.bucket.stall)
	n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	switch {
	case err == nil || r.left == 0:
		return n, nil
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return n, r.dir.wrapError(r.ctx, "read "+r.name, err)
}

func (r *reader) Close() error {
	r.watch.Stop()
	r.cancel(nil)
	return r.body.Close()
}
