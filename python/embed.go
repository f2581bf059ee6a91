// Package python carries Nereid's Python package: the stub that runs Python
// models, and the modules that they import.
package python

import (
	"embed"
	"io/fs"
)

// A directory's name would leave out the files that begin with an underscore.
//
//go:embed *.py nereid/*.py nereid/stub/*.py nereid/backends/*.py nereid/backends/*/*.py
var files embed.FS

// Files returns the package as it lies in a directory of Python's path, without
// its tests.
func Files() fs.FS { return files }
