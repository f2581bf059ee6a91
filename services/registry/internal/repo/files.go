package repo

import (
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
)

// Files is where repositories are: a tree of directories and files with
// absolute names. It is all that a store must offer to hold models; errors are
// those of package fs where it has one. It is safe for concurrent use.
type Files interface {
	// ReadDir lists a directory in the order of names.
	ReadDir(dir string) ([]fs.DirEntry, error)
	// Stat follows links, Lstat does not.
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	// Open opens a file for reading. Closing it ends a read under way.
	Open(name string) (File, error)
	// URL is the name by which workers fetch a directory.
	URL(name string) string
}

// File is an open file.
type File interface {
	fs.File
	io.ReaderAt
}

// Local is the machine's own file system.
type Local struct{}

var _ Files = Local{}

// ReadDir implements [Files].
func (Local) ReadDir(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }

// Stat implements [Files].
func (Local) Stat(name string) (fs.FileInfo, error) { return os.Stat(name) }

// Lstat implements [Files].
func (Local) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// Open implements [Files].
func (Local) Open(name string) (File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err // and no file that is nil inside
	}
	return file, nil
}

// URL implements [Files].
func (Local) URL(name string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(name)}).String()
}
