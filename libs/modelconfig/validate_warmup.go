package modelconfig

import (
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// maxWarmupElements bounds one input of a warm-up request, so that a slip of
// the keyboard does not take the memory of the machine.
const maxWarmupElements = 1 << 28

func (r *report) validateWarmup(c *inference.ModelConfig) {
	for i, s := range c.GetModelWarmup() {
		at := index("model_warmup", i)
		if limit := max(c.GetMaxBatchSize(), 1); int64(s.GetBatchSize()) > int64(limit) {
			r.invalid(at+".batch_size", "lower it, or 0 to skip the sample",
				"warmup sample '%s' has batch size %d, more than the %d that the model takes", s.GetName(), s.GetBatchSize(), limit)
		}
		for _, name := range sortedKeys(s.GetInputs()) {
			r.validateWarmupInput(c, entry(at+".inputs", name), s.GetName(), name, s.GetInputs()[name])
		}
		r.validateWarmupComplete(c, at, s)
	}
}

// validateWarmupInput checks one input. A name that the model does not have
// is no error: backends take such tensors as controls.
func (r *report) validateWarmupInput(c *inference.ModelConfig, at, sample, name string, in *inference.ModelWarmup_Input) {
	invalid := func(fix, format string, args ...any) {
		r.invalid(at, fix, "warmup sample '%s' input '%s' "+format, append([]any{sample, name}, args...)...)
	}
	dims := tensor.Shape(in.GetDims())
	n, ok := dims.Elements()
	switch {
	case !datatype(in.GetDataType()).Valid():
		invalid("set data_type", "has no data type")
	case !dims.Fixed():
		invalid("give the size of each dimension", "has variable dims %s", dims)
	case !ok || n > maxWarmupElements:
		invalid("warm up with a smaller shape", "has dims %s, more than %d elements", dims, maxWarmupElements)
	}
	if in.GetInputDataType() == nil {
		invalid("set zero_data, random_data or input_data_file", "must have input_data_type set")
	}
	if file, ok := in.GetInputDataType().(*inference.ModelWarmup_Input_InputDataFile); ok && !filepath.IsLocal(file.InputDataFile) {
		invalid("give a path within the model's directory warmup, without ..", "has input_data_file '%s', which leaves the model's directory warmup", file.InputDataFile)
	}
	for _, declared := range c.GetInput() {
		if declared.GetName() == name && declared.GetDataType() != in.GetDataType() {
			invalid("give both the same", "has data type %s, but the model's input has %s", in.GetDataType(), declared.GetDataType())
		}
		if declared.GetName() == name && dims.Fixed() && ok && !tensor.Shape(declared.GetDims()).Admits(dims) {
			invalid("give a shape that the model takes, without the batch dimension", "has dims %s, but the model's input has %s", dims, tensor.Shape(declared.GetDims()))
		}
	}
}

// validateWarmupComplete looks for inputs that the sample lacks.
func (r *report) validateWarmupComplete(c *inference.ModelConfig, at string, s *inference.ModelWarmup) {
	for _, declared := range c.GetInput() {
		if s.GetInputs()[declared.GetName()] == nil && !declared.GetOptional() && s.GetBatchSize() > 0 {
			r.invalid(at+".inputs", "add it to the sample", "warmup sample '%s' lacks input '%s'", s.GetName(), declared.GetName())
		}
	}
}
