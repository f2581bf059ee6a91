//go:build cgo

package onnxruntime

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// modelFile finds the version's ONNX file, or plan, for a GPU of a compute capability; none is on
// CPUs. The configured name may be a
// directory, which holds model.onnx and the files that it refers to.
func modelFile(v backend.Version, capability string) (string, error) {
	name := cmp.Or(v.Config.CapabilityFilenames[capability], v.Config.Filename, "model.onnx")
	file := filepath.Join(v.Dir, name)
	info, err := os.Stat(file)
	if err == nil && info.IsDir() {
		file = filepath.Join(file, "model.onnx")
		info, err = os.Stat(file)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("unable to find '%s', or 'model.onnx' in it: put the model file there or set default_model_filename%s", file, candidates(filepath.Dir(file)))
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("'%s' is not a regular file", file)
	case info.Size() == 0:
		return "", fmt.Errorf("'%s' is empty", file)
	}
	return file, nil
}

// candidates names the ONNX files of a directory; empty if it has none.
func candidates(dir string) string {
	found, err := filepath.Glob(filepath.Join(dir, "*.onnx"))
	if err != nil || len(found) == 0 {
		return ""
	}
	return ": " + filepath.Base(found[0]) + " is there"
}

// explain makes an error of the runtime fit for an operator: without the path
// that the message has anyway, and with what to do where that is known.
func (b *Backend) explain(file string, err error) error {
	text := strings.TrimPrefix(err.Error(), "Error creating C session from file: ")
	text = strings.TrimPrefix(text, "Load model from "+file+" failed:")
	if strings.Contains(text, "Protobuf parsing failed") {
		return fmt.Errorf("%s (%s)", strings.TrimSpace(text), damage(file))
	}
	for _, known := range [][2]string{
		{"official support for domain", "export the model for an older operator set, or install a newer ONNX Runtime than " + b.Version()},
		{"Unsupported model IR version", "save the model with an older version of ONNX, or install a newer ONNX Runtime than " + b.Version()},
		{"is not a registered function/op", "libraries of custom operators are not loaded: export the model with standard operators"},
		{"No Op registered for", "ONNX Runtime " + b.Version() + " does not know the operator: export the model with standard operators, or install a newer ONNX Runtime"},
		{"Could not find an implementation for", "ONNX Runtime " + b.Version() + " has the operator, but not on CPUs for these datatypes: change the model's datatypes"},
		{"External data path", "weights beside the model lie in the directory of its file, or below it"},
	} {
		if strings.Contains(text, known[0]) {
			return fmt.Errorf("%s (%s)", strings.TrimSpace(text), known[1])
		}
	}
	return errors.New(strings.TrimSpace(text))
}

// damage says what is wrong with a file that the runtime cannot parse.
func damage(path string) string {
	const unclear = "the file is damaged, cut off or no ONNX model: copy it again"
	file, err := os.Open(path)
	if err != nil {
		return unclear
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return unclear
	}
	if _, err := onnxheader.Read(file, info.Size()); err != nil {
		return err.Error() + ": copy it again"
	}
	return unclear
}

// bytesIn is how much the files of a version have. What cannot be read fails the load later.
func bytesIn(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if info, err := entry.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total
}
