package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
)

// createFile creates what a flag names: a file, an object of a store, or the standard output for -.
// An object is there once it is closed.
func createFile(ctx context.Context, flag, path string) (io.WriteCloser, error) {
	switch {
	case path == "-":
		return standard{os.Stdout}, nil
	case !blob.Remote(path):
		file, err := os.Create(path)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "%s=%s: the file cannot be written", flag, path)
		}
		return file, nil
	}
	dir, name, err := objectAt(ctx, blob.Options{Write: true}, flag, path)
	if err != nil {
		return nil, err
	}
	content, in := io.Pipe()
	o := &object{PipeWriter: in, written: make(chan error, 1)}
	go func() {
		err := dir.Write(ctx, name, content)
		_ = content.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // writes fail from now on
		o.written <- err
	}()
	return o, nil
}

// standard is the standard output, which others go on to use.
type standard struct{ io.Writer }

// Close implements io.Closer.
func (standard) Close() error { return nil }

// object is one that is being written.
type object struct {
	*io.PipeWriter
	written chan error
}

// Close ends the object, and waits until it is there.
func (o *object) Close() error { return errors.Join(o.PipeWriter.Close(), <-o.written) }

// openFile opens what a flag names: a file, or an object of a store.
func openFile(ctx context.Context, flag, path string) (io.ReadCloser, error) {
	if !blob.Remote(path) {
		file, err := os.Open(path)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "%s=%s: the file cannot be read", flag, path)
		}
		return file, nil
	}
	dir, name, err := objectAt(ctx, blob.Options{}, flag, path)
	if err != nil {
		return nil, err
	}
	list, err := dir.List(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		if o.Name == name {
			return dir.Open(ctx, o, 0, o.Size)
		}
	}
	return nil, errs.New(errs.StoreNotFound, "%s=%s: there is no such object", flag, path)
}

// objectAt splits a URL into the directory and the name of its object.
func objectAt(ctx context.Context, o blob.Options, flag, url string) (*blob.Dir, string, error) {
	at := strings.LastIndexByte(url, '/')
	name := url[at+1:]
	if name == "" {
		return nil, "", errs.New(errs.ConfigInvalid, "%s=%s: the URL ends with no name", flag, url)
	}
	dir, err := blob.New(o).At(ctx, url[:at])
	return dir, name, err
}
