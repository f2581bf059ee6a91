package modelfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// Bounds of one version. They stop loops of links and a path that was meant
// to be another.
const (
	maxFiles = 100_000
	maxDepth = 32
)

// Tree is the files of one version as they were listed at a moment. It is
// immutable.
type Tree struct {
	files []file
	at    time.Time // before the first was looked at
}

// file is a file as it was listed.
type file struct {
	name  string // relative to the version's directory, with slashes
	path  string
	stamp stamp
	// modified is the file's modification time, as people set it.
	modified time.Time
}

// Shared names the directories of a model whose files are loaded with each of
// its versions.
func Shared() []string { return []string{"initial_state", "warmup"} }

// Part reports whether what has a name in a model's directory belongs to the content
// of the version whose directory has another: that itself, the [Shared] directories,
// and archives, as a model's own Python is packed in.
func Part(name, version string) bool {
	return name == version || slices.Contains(Shared(), name) || archive(name)
}

func archive(name string) bool {
	return strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// bytecode is the directory into which Python writes what it has compiled, also
// while a model is served.
const bytecode = "__pycache__"

// List lists what the content of a version is made of: all regular files
// below its directory but Python's bytecode, those below the model's [Shared]
// directories, and archives in the model's own. Links are followed. ctx ends a long
// list.
func List(ctx context.Context, from Files, modelDir, versionDir string) (*Tree, error) {
	l := &lister{from: from, tree: &Tree{at: time.Now()}}
	if err := l.directory(ctx, versionDir, "", 0); err != nil {
		return nil, err
	}
	for _, shared := range Shared() {
		// No file of the version has a name that begins so.
		err := l.directory(ctx, Join(modelDir, shared), "../"+shared+"/", 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if err := l.archives(ctx, modelDir); err != nil {
		return nil, err
	}
	return l.tree, nil
}

// Newest is the latest modification of any of the files.
func (t *Tree) Newest() (newest time.Time) {
	for i := range t.files {
		if t.files[i].modified.After(newest) {
			newest = t.files[i].modified
		}
	}
	return newest
}

// Bytes is how much the files have together.
func (t *Tree) Bytes() (sum int64) {
	for i := range t.files {
		sum += t.files[i].stamp.size
	}
	return sum
}

// Named returns the paths of the files whose names end so.
func (t *Tree) Named(suffix string) (paths []string) {
	for i := range t.files {
		if strings.HasSuffix(t.files[i].name, suffix) {
			paths = append(paths, t.files[i].path)
		}
	}
	return paths
}

// Open opens each of the files and reads none: the error is that of the first
// that cannot be opened.
func (t *Tree) Open(from Files) error {
	for i := range t.files {
		opened, err := from.Open(t.files[i].path)
		if err == nil {
			err = opened.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lister is one call of List.
type lister struct {
	from Files
	tree *Tree
}

func (l *lister) directory(ctx context.Context, dir, prefix string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s is nested deeper than %d directories", dir, maxDepth)
	}
	entries, err := l.from.ReadDir(dir) // sorted by name
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == bytecode {
			continue
		}
		if err := l.entry(ctx, Join(dir, entry.Name()), prefix+entry.Name(), depth); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// archives lists those in a model's directory.
func (l *lister) archives(ctx context.Context, dir string) error {
	entries, err := l.from.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		path := Join(dir, entry.Name())
		if !archive(entry.Name()) {
			continue
		}
		if info, err := l.from.Stat(path); err == nil && info.IsDir() {
			continue
		}
		if err := l.entry(ctx, path, "../"+entry.Name(), 0); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) entry(ctx context.Context, path, name string, depth int) error {
	info, err := l.from.Stat(path)
	switch {
	case err != nil:
		return err // a dangling link among them
	case info.IsDir():
		return l.directory(ctx, path, name+"/", depth+1)
	case !info.Mode().IsRegular():
		return nil // a socket or pipe holds no model
	case len(l.tree.files) == maxFiles:
		return fmt.Errorf("there are more than %d files", maxFiles)
	}
	l.tree.files = append(l.tree.files, file{name: name, path: path, stamp: stampOf(info), modified: info.ModTime()})
	return nil
}
