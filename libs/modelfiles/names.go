package modelfiles

import (
	"path"
	"path/filepath"
	"strings"
)

// Join returns the name of a file below a directory, which is a path or a URL. The elements may
// have slashes; they never lead out of a URL.
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

// ETag identifies the content of a file in a store: the Sys method of its FileInfo returns it.
type ETag string
