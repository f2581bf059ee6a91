package modelfiles

import (
	"path"
	"path/filepath"
	"strings"
)

// Join gives the name of what lies below a directory, which is a path or a
// URL. The elements may have slashes; of a URL they never lead out of it.
func Join(dir string, elements ...string) string {
	if !isURL(dir) {
		return filepath.Join(append([]string{dir}, elements...)...)
	}
	return strings.TrimRight(dir, "/") + path.Join("/", path.Join(elements...))
}

// Parent gives the directory in which a name is.
func Parent(name string) string {
	if !isURL(name) {
		return filepath.Dir(name)
	}
	return name[:strings.LastIndexByte(name, '/')]
}

func isURL(name string) bool { return strings.Contains(name, "://") }

// ETag names a file's content where a store does: it is what Sys of the file's
// information returns.
type ETag string
