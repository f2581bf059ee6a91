package modelconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// MaxLabels is the most bytes of a file of labels. A million classes stay
// below it.
const MaxLabels = 16 << 20

// The directories of a model that hold the contents of tensors.
const (
	warmupDir       = "warmup"
	initialStateDir = "initial_state"
)

// ReadLabels reads a file of labels: one in each line, that of class 0 first.
// An empty line is an empty label; line ends may be those of Windows.
func ReadLabels(r io.Reader) ([]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxLabels+1))
	if err != nil {
		return nil, err
	}
	if len(text) > MaxLabels {
		return nil, fmt.Errorf("it has more than %d bytes", MaxLabels)
	}
	if len(text) == 0 {
		return nil, nil
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, line := range lines {
		if !utf8.ValidString(line) {
			return nil, fmt.Errorf("line %d is not UTF-8", i+1)
		}
		lines[i] = strings.TrimSuffix(line, "\r")
	}
	return lines, nil
}

// ClassLabels reads the labels of the outputs that have them, by output. open
// is as in [Directory]. The error is as [Load]'s.
func ClassLabels(c *inference.ModelConfig, open func(path string) (io.ReadCloser, error)) (map[string][]string, error) {
	r := &report{model: c.GetName()}
	labels := make(map[string][]string)
	for i, out := range c.GetOutput() {
		if out.GetLabelFilename() != "" {
			labels[out.GetName()] = r.labels(i, out, open)
		}
	}
	return labels, r.problems.AsError(r.model)
}

func (r *report) labels(i int, out *inference.ModelOutput, open func(string) (io.ReadCloser, error)) []string {
	at := index("output", i) + ".label_filename"
	file := r.open(at, "label file", out.GetLabelFilename(), open)
	if file == nil {
		return nil
	}
	defer file.Close()
	labels, err := ReadLabels(file)
	if err != nil {
		r.invalid(at, "write one label in each line, as UTF-8", "label file '%s' cannot be read: %v", out.GetLabelFilename(), err)
	}
	return labels
}

// open opens a file that a configuration names, or reports why it cannot and
// returns nil.
func (r *report) open(at, what, name string, open func(string) (io.ReadCloser, error)) io.ReadCloser {
	file, err := open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.invalid(at, "put it there, relative to the model's directory, or correct the name", "%s '%s' does not exist", what, name)
	case err != nil:
		r.invalid(at, "make it a file that the server may read", "%s '%s' cannot be read: %v", what, name, err)
	default:
		return file
	}
	return nil
}

// files checks the files that a valid path leads to.
func files(c *inference.ModelConfig, open func(string) (io.ReadCloser, error)) Problems {
	r := &report{model: c.GetName()}
	for i, out := range c.GetOutput() {
		if name := out.GetLabelFilename(); name != "" && filepath.IsLocal(name) {
			r.labels(i, out, open)
		}
	}
	for i, sample := range c.GetModelWarmup() {
		for _, name := range sortedKeys(sample.GetInputs()) {
			r.exists(entry(index("model_warmup", i)+".inputs", name), "warmup data file", warmupDir, sample.GetInputs()[name].GetInputDataFile(), open)
		}
	}
	for i, state := range c.GetSequenceBatching().GetState() {
		for j, initial := range state.GetInitialState() {
			r.exists(index(index("sequence_batching.state", i)+".initial_state", j), "initial state's data file", initialStateDir, initial.GetDataFile(), open)
		}
	}
	return r.problems
}

func (r *report) exists(at, what, dir, name string, open func(string) (io.ReadCloser, error)) {
	if name == "" || !filepath.IsLocal(name) {
		return // none, or reported by its own rule
	}
	if file := r.open(at, what, path.Join(dir, filepath.ToSlash(name)), open); file != nil {
		_ = file.Close()
	}
}
