package modelconfig

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// CompareEnsemble compares an ensemble with the models of its steps, and returns the problems
// that prevent its execution. model returns the configuration of a step's model; nil if there
// is none. The texts are Triton's.
func CompareEnsemble(c *Config, model func(*Step) *Config) Problems {
	e := &ensembleReport{report: report{model: c.Name}, known: make(map[string]inferred)}
	for i := range c.Inputs {
		e.known[c.Inputs[i].Name] = inferredFrom(c, &c.Inputs[i], c.Inputs[i].BackendDims())
	}
	for i := range c.Outputs {
		e.known[c.Outputs[i].Name] = inferredFrom(c, &c.Outputs[i], c.Outputs[i].BackendDims())
	}
	seen := make(map[string]bool)
	for i := range c.Ensemble.Steps {
		step := &c.Ensemble.Steps[i]
		at := index("ensemble_scheduling.step", i)
		of := model(step)
		if of == nil {
			e.unknownStep(at, step.Model)
			continue
		}
		if of.MaxBatchSize != 0 && of.MaxBatchSize < c.MaxBatchSize && !seen[of.Name] {
			e.wrong("max_batch_size", fmt.Sprintf("use at most %d", of.MaxBatchSize),
				"ensemble %s allows maximum batch size %d, but it contains model %s which only allows maximum batch size to be %d", c.Name, c.MaxBatchSize, of.Name, of.MaxBatchSize)
		}
		seen[of.Name] = true
		e.inputs(at+".input_map", step, of)
		e.outputs(at+".output_map", step, of)
	}
	return e.problems
}

// WithUnknownSteps returns the problems of an ensemble, and with them the steps whose models
// are unknown. It is for an ensemble whose problems keep it from [CompareEnsemble]. text is
// its configuration, from file. It returns the problems of another model, and those of a
// text that cannot be read at all, as they are.
func WithUnknownSteps(problems Problems, text []byte, file, name string, known func(namespace, model string) bool) Problems {
	r := &report{model: name}
	read := parse(string(text))
	for i, step := range read.config.GetEnsembleScheduling().GetStep() {
		if model := step.GetModelName(); model != "" && !known(step.GetModelNamespace(), model) {
			r.unknownStep(index("ensemble_scheduling.step", i), model)
		}
	}
	read.locate(r.problems)
	for i := range r.problems {
		r.problems[i].File = file
	}
	all := append(slices.Clone(problems), r.problems...)
	slices.SortStableFunc(all, byLine)
	return all
}

func (r *report) unknownStep(at, model string) {
	r.wrong(at+".model_name", "add it to a repository, or name another", "ensemble %s contains models that are not available or ambiguous: %s", r.model, model)
}

type ensembleReport struct {
	report
	known map[string]inferred // by the ensemble's tensor
}

// inferred is what a model says of a tensor.
type inferred struct {
	model    string
	datatype tensor.Datatype
	dims     tensor.Shape
	full     tensor.Shape // with the batch dimension, where the model has one
}

// inferredFrom is what a model says of a tensor by these dimensions: an ensemble by those
// that its steps see, the model of a step by those that its clients see.
func inferredFrom(c *Config, io *IO, dims tensor.Shape) inferred {
	full := dims
	if c.Batches() {
		full = dims.Prepend(-1)
	}
	return inferred{model: c.Name, datatype: io.Datatype, dims: dims, full: full}
}

func (e *ensembleReport) inputs(at string, step *Step, of *Config) {
	for _, name := range slices.Sorted(maps.Keys(step.Inputs)) {
		io := of.Input(name)
		if io == nil {
			e.wrong(at, "name an input of the model", "in ensemble %s, ensemble tensor %s is mapping to non-existing input %s in model %s", e.model, step.Inputs[name], name, of.Name)
			continue
		}
		e.tensor(at, step.Inputs[name], inferredFrom(of, io, io.Dims))
	}
	for i := range of.Inputs {
		if in := &of.Inputs[i]; step.Inputs[in.Name] == "" && !in.Optional {
			e.wrong(at, "map a tensor of the ensemble to it", "in ensemble %s, input %s in model %s is not mapped to any ensemble tensors", e.model, in.Name, of.Name)
		}
	}
}

func (e *ensembleReport) outputs(at string, step *Step, of *Config) {
	for _, name := range slices.Sorted(maps.Keys(step.Outputs)) {
		io := of.Output(name)
		if io == nil {
			e.wrong(at, "name an output of the model", "in ensemble %s, ensemble tensor %s is mapped from non-existing output %s in model %s", e.model, step.Outputs[name], name, of.Name)
			continue
		}
		e.tensor(at, step.Outputs[name], inferredFrom(of, io, io.Dims))
	}
}

// tensor compares what a model says of a tensor with what was said of it first. A
// tensor of models that batch and of others may have its batch dimension declared
// or not.
func (e *ensembleReport) tensor(at, name string, says inferred) {
	first, known := e.known[name]
	if !known {
		e.known[name] = says
		return
	}
	if first.datatype != says.datatype {
		e.wrong(at, "have both models agree, or put one between that converts it",
			"in ensemble %s, ensemble tensor %s: inconsistent data type: TYPE_%s is inferred from model %s while TYPE_%s is inferred from model %s",
			e.model, name, configName(first.datatype), first.model, configName(says.datatype), says.model)
	}
	if !agree(first.dims, says.dims) && !agree(first.full, says.full) {
		e.wrong(at, "have both models agree, or put one between that reshapes it",
			"in ensemble %s, ensemble tensor %s: inconsistent shape: %s is inferred from model %s while %s is inferred from model %s",
			e.model, name, first.full, first.model, says.full, says.model)
	}
}

// configName is a datatype's name in a configuration, without TYPE_.
func configName(d tensor.Datatype) string {
	if d == tensor.Bytes {
		return "STRING"
	}
	return d.String()
}

// agree reports whether some shape is both; -1 is any size.
func agree(a, b tensor.Shape) bool {
	return slices.EqualFunc(a, b, func(m, n int64) bool { return m == n || m == -1 || n == -1 })
}
