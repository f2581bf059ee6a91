package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Compare compares a configuration with the header of its ONNX model, and returns the problems
// that will prevent a load. Unlike a session it infers no shapes, so it leaves undecided cases
// to the session. file is the model file's path, for the problems' places.
func Compare(c *Config, h *onnxheader.Header, file string) Problems {
	r := &report{model: c.Name, file: file}
	c = c.ForBackend()
	r.compareInputs(c, h)
	for i := range c.Outputs {
		r.compareTensor(c, "output", &c.Outputs[i], h.Outputs)
	}
	return r.problems
}

// compareVersions compares a valid configuration with the model files of the
// versions that it keeps.
func compareVersions(c *inference.ModelConfig, from *Completion) (problems Problems) {
	d := backends.Get(c.GetBackend())
	if d.Header == nil {
		return nil
	}
	selected, _ := SelectVersions(c.GetVersionPolicy(), from.Versions)
	for _, version := range selected {
		file := fmt.Sprintf("%d/%s", version, c.GetDefaultModelFilename())
		h, err := from.Header(d, version, c.GetDefaultModelFilename())
		if err != nil {
			r := &report{model: c.GetName(), file: file}
			r.wrong("", "export or copy the model again", "the model file of '%s' cannot be read: %v", r.model, err)
			problems = append(problems, r.problems...)
			continue
		}
		problems = append(problems, Compare(view(c), h, file)...)
	}
	return problems
}

func (r *report) compareInputs(c *Config, h *onnxheader.Header) {
	given := make(map[string]bool)
	for i := range c.Inputs {
		given[c.Inputs[i].Name] = true
		if c.Sequences.Control(c.Inputs[i].Name) != nil && !slices.ContainsFunc(h.Inputs, func(v onnxheader.Value) bool { return v.Name == c.Inputs[i].Name }) {
			r.wrong("", "remove the control, or name an input of the model",
				"configuration specified sequence control '%s', but model does not provide that input", c.Inputs[i].Name)
			continue
		}
		r.compareTensor(c, "input", &c.Inputs[i], h.Inputs)
	}
	for _, b := range c.BatchInputs {
		for _, target := range b.Targets {
			given[target] = true
		}
	}
	for _, v := range required(h) {
		if !given[v.Name] {
			r.wrong("", "list it, or leave input empty to have all of them completed",
				"unable to load model '%s', the model's input '%s' is not in the configuration", r.model, v.Name)
		}
	}
}

func (r *report) compareTensor(c *Config, role string, io *IO, list []onnxheader.Value) {
	i := slices.IndexFunc(list, func(v onnxheader.Value) bool { return v.Name == io.Name })
	if i < 0 {
		names := make([]string, len(list))
		for k := range list {
			names[k] = list[k].Name
		}
		r.wrong("", diagnostics.Dictionary{}.Suggest(io.Name, names), "unexpected inference %s '%s', allowed %ss are: %s", role, io.Name, role, strings.Join(names, ", "))
		return
	}
	v := list[i]
	if t := v.Datatype(); t != io.Datatype {
		provides := t.ConfigName()
		fix := "write  data_type: " + provides
		if !t.Valid() {
			provides = fmt.Sprintf("%s of ONNX's type %d", v.Kind, v.Element)
			fix = "serve a model that has tensors of the protocol's datatypes"
		}
		r.wrong("", fix, "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s",
			r.model, io.Datatype.ConfigName(), role, io.Name, provides)
	}
	if v.HasShape {
		r.compareDims(c, io, v.Shape(), role == "output")
	}
}

// compareDims holds dimensions against the model's. An output's may be known
// where the header leaves them open, since a session infers more.
func (r *report) compareDims(c *Config, io *IO, model tensor.Shape, output bool) {
	if io.Ragged || len(model) == 0 && !c.Batches() || output && scattered(c, io.Name) {
		return // these have rules of their own, which are the session's to check
	}
	dims := io.BackendDims()
	if c.Batches() {
		if len(model) == 0 || model[0] != variable {
			r.wrong("", fmt.Sprintf("set max_batch_size: 0 and dims: %s, or export the model with its first dimension open", written(model)),
				"model '%s', tensor '%s': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is %s",
				r.model, io.Name, model)
			return
		}
		dims = dims.Prepend(variable)
	}
	fits := func(m, d int64) bool { return m == d || m == variable || output && d == variable }
	if slices.EqualFunc(model, dims, fits) {
		return
	}
	fix, complete := "write  dims: "+written(model), "shape "+dims.String()
	switch {
	case !c.Batches() && len(model) == len(dims)+1 && model[0] == variable:
		fix += ", or set max_batch_size"
	case c.Batches():
		fix = "write  dims: " + written(model[1:]) + ", without the batch dimension"
		complete = "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape " + dims.String()
	}
	r.wrong("", fix, "model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model configuration specifies %d dimensions (%s)",
		r.model, io.Name, len(model), model, len(dims), complete)
}

// scattered reports whether an output is given out by an input's shapes.
func scattered(c *Config, output string) bool {
	return slices.ContainsFunc(c.BatchOutputs, func(b BatchOutput) bool { return slices.Contains(b.Targets, output) })
}

// written gives a shape as a configuration writes it.
func written(shape tensor.Shape) string {
	if len(shape) == 0 {
		return "[ 1 ]"
	}
	return "[ " + strings.ReplaceAll(strings.Trim(shape.String(), "[]"), ",", ", ") + " ]"
}
