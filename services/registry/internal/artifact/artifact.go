// Package artifact keeps the files of models that are given through the load
// API: on disk, outside the state buckets, each set in a directory that is
// named after its content. It holds what it is given until it is swept.
package artifact

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Put writes the files of a model, by their paths with slashes, into a
// directory below root and returns it. The same files give the same directory,
// which is there whole or not at all. A path that leaves the model's directory
// is refused as invalid_parameter; the other errors are those of the disk.
func Put(root string, files map[string][]byte) (string, error) {
	names := make(map[string]string, len(files)) // as they are written, by key
	for name := range files {
		clean, err := checkPath(name)
		if err != nil {
			return "", err
		}
		names[name] = clean
	}
	dir := filepath.Join(root, digest(names, files))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", writeFailed(err)
	}
	draft, err := os.MkdirTemp(root, draftPrefix)
	if err != nil {
		return "", writeFailed(err)
	}
	defer func() { _ = os.RemoveAll(draft) }() // gone if it was renamed; else Sweep removes it
	for name, data := range files {
		if err := write(filepath.Join(draft, filepath.FromSlash(names[name])), data); err != nil {
			return "", writeFailed(err)
		}
	}
	if err := os.Rename(draft, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", writeFailed(err)
	}
	return dir, nil
}

// draftPrefix begins the names of directories that are being written.
const draftPrefix = ".draft-"

// Sweep removes everything below root but the directories to keep. Nobody may
// put files meanwhile.
func Sweep(root string, keep func(dir string) bool) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return writeFailed(err)
	}
	var failures []error
	for _, entry := range entries {
		if dir := filepath.Join(root, entry.Name()); !keep(dir) {
			failures = append(failures, os.RemoveAll(dir))
		}
	}
	return errors.Join(failures...)
}

// checkPath gives a file's path in its shortest form.
func checkPath(name string) (string, error) {
	clean := path.Clean(name)
	if name == "" || clean == "." || !filepath.IsLocal(filepath.FromSlash(clean)) || strings.ContainsAny(name, "\x00\\") {
		return "", errs.New(errs.InvalidParameter, "Invalid file parameter 'file:%s' with normalized path '%s' must stay within model directory.", name, clean)
	}
	return clean, nil
}

func digest(names map[string]string, files map[string][]byte) string {
	total := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(files)) {
		// Lengths before what they measure, so that no two sets read alike.
		total.Write(binary.AppendUvarint(nil, uint64(len(names[key]))))
		total.Write([]byte(names[key]))
		total.Write(binary.AppendUvarint(nil, uint64(len(files[key]))))
		total.Write(files[key])
	}
	return "sha256-" + hex.EncodeToString(total.Sum(nil))
}

func write(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

func writeFailed(err error) error {
	return errs.Wrap(errs.LoadFailed, err, "the given files cannot be kept: %v", err)
}
