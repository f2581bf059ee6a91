package repo

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/modelfiles"
)

// Files is where repositories are. It is all that a store must offer to hold
// models.
type Files interface {
	modelfiles.Files
	// Lstat does not follow links, as Stat does.
	Lstat(name string) (fs.FileInfo, error)
	// URL is the name by which workers fetch a directory.
	URL(name string) string
}

// Local is the machine's own file system.
type Local struct{ modelfiles.Local }

var _ Files = Local{}

// Lstat implements [Files].
func (Local) Lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }

// URL implements [Files].
func (Local) URL(name string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(name)}).String()
}
