// Package modelfiles identifies the content of model versions: the files that
// belong to it, their digest, and a fingerprint by which a host recognizes files
// that it has digested before.
//
// The same files have the same digest on every machine. So the registry can state
// which content a version has, and a worker can verify that it has loaded it.
package modelfiles

import (
	"io"
	"io/fs"
	"os"
)

// Files is a tree of directories and files with absolute names. Errors are
// those of package fs where it has one. It is safe for concurrent use.
type Files interface {
	// ReadDir lists a directory in the order of names.
	ReadDir(dir string) ([]fs.DirEntry, error)
	// Stat follows links.
	Stat(name string) (fs.FileInfo, error)
	// Open opens a file for reading. Closing it ends a read under way.
	Open(name string) (File, error)
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

// Open implements [Files].
func (Local) Open(name string) (File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err // and no file that is nil inside
	}
	return file, nil
}
