package repo

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// remoteFile is an open file of a store. It reads the content that was listed,
// or fails.
type remoteFile struct {
	info
	dir    *blob.Dir
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	// Of Read.
	body io.ReadCloser // nil while nothing is being read
	pos  int64

	// Of ReadAt: the bytes from start on.
	window []byte
	start  int64
	step   int64 // how many bytes to ask for next
}

// Bounds of what ReadAt asks for at a time. A header lies at the beginning and
// the end of a file, or scattered among weights: then the steps grow.
const (
	firstStep = 64 << 10
	maxStep   = 8 << 20
)

// maxRetries is how often a read that broke off goes on.
const maxRetries = 4

func (f *remoteFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// Read goes on where it broke off, some times.
func (f *remoteFile) Read(p []byte) (n int, err error) {
	if f.pos >= f.Size() {
		return 0, io.EOF
	}
	if f.start == 0 && int64(len(f.window)) == f.Size() {
		n = copy(p, f.window[f.pos:])
		f.pos += int64(n)
		return n, nil
	}
	for failed := 0; ; failed++ {
		n, err = f.read(p)
		f.pos += int64(n)
		if n > 0 || err == nil || failed == maxRetries || !retryable(err) {
			break
		}
		lifecycle.Pause(f.ctx, 100*time.Millisecond<<failed)
	}
	if n > 0 && !errors.Is(err, io.EOF) {
		err = nil // it fails again, if it does
	}
	return n, err
}

func (f *remoteFile) read(p []byte) (n int, err error) {
	if f.body == nil {
		if f.body, err = f.dir.Open(f.ctx, f.object, f.pos, f.Size()-f.pos); err != nil {
			f.body = nil
			return 0, err
		}
	}
	if n, err = f.body.Read(p); err != nil {
		_ = f.body.Close()
		f.body = nil
	}
	return n, err
}

// retryable reports whether a read may succeed a moment later.
func retryable(err error) bool {
	switch errs.Of(err) {
	case errs.StoreTruncated, errs.StoreUnreachable, errs.StoreThrottled:
		return true
	}
	return false
}

// ReadAt implements [io.ReaderAt]; it is for one goroutine.
func (f *remoteFile) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && off < f.Size() {
		if off < f.start || off >= f.start+int64(len(f.window)) {
			if err := f.fetch(off, int64(len(p)-n)); err != nil {
				return n, err
			}
		}
		copied := copy(p[n:], f.window[off-f.start:])
		n, off = n+copied, off+int64(copied)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fetch moves the window to an offset.
func (f *remoteFile) fetch(off, least int64) error {
	f.step = min(max(f.step*2, firstStep), maxStep)
	length := min(max(f.step, least), f.Size()-off)
	var err error
	for failed := 0; ; failed++ {
		var body io.ReadCloser
		if body, err = f.dir.Open(f.ctx, f.object, off, length); err == nil {
			f.window, err = io.ReadAll(body)
			_ = body.Close()
		}
		if err == nil || failed == maxRetries || !retryable(err) {
			break
		}
		lifecycle.Pause(f.ctx, 100*time.Millisecond<<failed)
	}
	if err != nil {
		f.window = nil
	}
	f.start = off
	return err
}

func (f *remoteFile) Close() error {
	f.cancel()
	if f.body != nil {
		return f.body.Close()
	}
	return nil
}
