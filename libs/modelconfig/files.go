package modelconfig

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// The directories of a model that hold the contents of tensors.
const (
	warmupDir       = "warmup"
	initialStateDir = "initial_state"
)

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
