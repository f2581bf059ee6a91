package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/onnxheader"
)

// Compare holds a configuration against the header of the ONNX model that it
// is for, and returns what will keep the model from being loaded. It sees less
// than a session, which infers shapes, and so leaves to it what the header
// does not settle. file is the model file's path, for the problems' places.
func Compare(c *Config, h *onnxheader.Header, file string) Problems {
	r := &report{model: c.Name, file: file}
	r.compareInputs(c, h)
	for i := range c.Outputs {
		r.compareTensor("output", &c.Outputs[i], h.Outputs)
	}
	return r.problems
}

func (r *report) compareInputs(c *Config, h *onnxheader.Header) {
	given := make(map[string]bool)
	for i := range c.Inputs {
		given[c.Inputs[i].Name] = true
		r.compareTensor("input", &c.Inputs[i], h.Inputs)
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

func (r *report) compareTensor(role string, io *IO, list []onnxheader.Value) {
	i := slices.IndexFunc(list, func(v onnxheader.Value) bool { return v.Name == io.Name })
	if i < 0 {
		names := make([]string, len(list))
		for k := range list {
			names[k] = list[k].Name
		}
		r.wrong("", suggest(io.Name, names), "unexpected inference %s '%s', allowed %ss are: %s", role, io.Name, role, strings.Join(names, ", "))
		return
	}
	v := list[i]
	if t := v.Datatype(); t != io.Datatype {
		provides := t.ConfigName()
		if !t.Valid() {
			provides = fmt.Sprintf("%s of ONNX's type %d", v.Kind, v.Element)
		}
		r.wrong("", "give the model's data_type", "unable to load model '%s', configuration expects datatype %s for %s '%s', model provides %s",
			r.model, io.Datatype.ConfigName(), role, io.Name, provides)
	}
}
