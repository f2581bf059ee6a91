// Package scaffold writes the files of a new model.
package scaffold

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// The files end in .txt so that tools for Python let them be.
//
//go:embed python
var files embed.FS

// Python writes a Python model into the directory of a repository, and returns
// the paths of the files that it wrote. A directory that is there already is not
// touched (already_exists).
func Python(repository, name string) ([]string, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	dir := filepath.Join(repository, name)
	if err := os.MkdirAll(repository, 0o755); err != nil {
		return nil, notWritten(repository, err)
	}
	if err := os.Mkdir(dir, 0o755); errors.Is(err, fs.ErrExist) {
		return nil, errs.New(errs.AlreadyExists, "%s is there already: give another name, or remove it", dir)
	} else if err != nil {
		return nil, notWritten(dir, err)
	}
	var written []string
	for _, to := range []string{"config.pbtxt", "1/model.py", "test_model.py", "README.md"} {
		text, err := files.ReadFile(path.Join("python", path.Base(to)+".txt"))
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, filepath.FromSlash(to))
		if err := write(file, []byte(strings.ReplaceAll(string(text), "NAME", name))); err != nil {
			return nil, err
		}
		written = append(written, file)
	}
	return written, nil
}

// Package writes the files of a package into a directory. What is there already
// is written over, of the same names.
func Package(from fs.FS, dir string) error {
	return fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		return write(filepath.Join(dir, filepath.FromSlash(name)), text)
	})
}

func write(file string, text []byte) error {
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	if err != nil {
		return notWritten(file, err)
	}
	return nil
}

func notWritten(path string, err error) error {
	return errs.Wrap(errs.ConfigInvalid, err, "%s cannot be written: %v", path, err)
}

// checkName refuses names that the server does not load, and those that need
// quotes in a shell or a URL.
func checkName(name string) error {
	usual := func(r rune) bool {
		return r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if name == "" || strings.ContainsAny(name[:1], ".-") || strings.ContainsFunc(name, func(r rune) bool { return !usual(r) }) {
		return errs.New(errs.ConfigInvalid, "a model cannot be named %q: use letters, digits, _, - and dots, with neither a dot nor a - at the beginning", name)
	}
	return nil
}
