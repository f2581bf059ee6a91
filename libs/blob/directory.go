package blob

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const directoryScheme = "file"

// directory is a directory in place of a store.
func directory() provider {
	return provider{
		scheme: directoryScheme,
		forms:  "file:///path",
		parse: func(l *Location, rest string) bool {
			l.Bucket = filepath.Clean(rest)
			return filepath.IsAbs(rest)
		},
		base: func(l Location) string { return "file://" + l.Bucket },
		open: func(ctx context.Context, _ *Stores, at Location, _ credential) (store, bool, error) {
			info, err := os.Stat(at.Bucket)
			if err == nil && !info.IsDir() {
				err = &fs.PathError{Op: "open", Path: at.Bucket, Err: syscall.ENOTDIR}
			}
			if err != nil {
				return nil, false, (&Dir{bucket: &bucket{}, at: at}).wrapError(ctx, "open", err)
			}
			return directoryStore(at.Bucket), false, nil
		},
	}
}

// directoryStore is the files below a directory. Links that lead out of it are
// not followed.
type directoryStore string

func (d directoryStore) list(ctx context.Context, prefix, _ string) (page []Object, next string, err error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	below := path.Clean(prefix)
	if _, err := root.Stat(below); err != nil {
		return nil, "", ignoreNotExist(err)
	}
	err = fs.WalkDir(root.FS(), below, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if info, err := root.Stat(name); err == nil && info.Mode().IsRegular() && strings.HasPrefix(name, prefix) {
			page = append(page, Object{Name: name, Size: info.Size(), Modified: info.ModTime()})
		}
		return nil
	})
	slices.SortFunc(page, func(a, b Object) int { return cmp.Compare(a.Name, b.Name) })
	return page, "", err
}

// ignoreNotExist makes a prefix that nothing begins with an empty listing.
func ignoreNotExist(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

func (d directoryStore) read(_ context.Context, key, _ string, offset, length int64) (body io.ReadCloser, served string, err error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	file, err := root.Open(key)
	if err != nil {
		return nil, "", err
	}
	return section{io.NewSectionReader(file, offset, length), file}, "", nil
}

// section is a part of a file, which it closes.
type section struct {
	io.Reader
	io.Closer
}
