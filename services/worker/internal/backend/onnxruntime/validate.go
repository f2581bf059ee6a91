//go:build cgo

package onnxruntime

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// declaration is what a session says about itself.
type declaration struct {
	inputs, outputs, initializers []sessionIO
}

func (e *engine) declaration(s *session) (d declaration, err error) {
	if d.inputs, err = e.inputs(s.native); err != nil {
		return d, err
	}
	if d.outputs, err = e.outputs(s.native); err != nil {
		return d, err
	}
	d.initializers, err = e.initializers(s.native)
	return d, err
}

// validate compares a configuration with the session. The texts are Triton's.
func validate(c *modelconfig.Config, d declaration) error {
	targets := 0
	for _, b := range c.BatchInputs {
		targets += len(b.Targets)
	}
	if err := allTensors(d); err != nil {
		return err
	}
	required := targets
	for i := range c.Inputs {
		if !c.Inputs[i].Optional {
			required++
		}
	}
	if required != len(d.inputs) {
		return fmt.Errorf("unable to load model '%s', configuration expects %d inputs, model provides %d",
			c.Name, required, len(d.inputs))
	}
	allowed := slices.Concat(d.inputs, d.initializers)
	if err := validateRanks(c); err != nil {
		return err
	}
	for i := range c.Inputs {
		if err := validateInput(c, &c.Inputs[i], allowed); err != nil {
			return err
		}
	}
	for i := range c.BatchInputs {
		if err := validateBatchInput(c, &c.BatchInputs[i], d.inputs); err != nil {
			return err
		}
	}
	for i := range c.BatchOutputs {
		if err := validateSource(c, c.BatchOutputs[i].Source); err != nil {
			return err
		}
	}
	for i := range c.Outputs {
		if err := validateOutput(c, &c.Outputs[i], d.outputs); err != nil {
			return err
		}
	}
	return nil
}

// validateRanks bounds the dimensions of tensors, which a session that does not
// declare them leaves open: a call has room for maxRank.
func validateRanks(c *modelconfig.Config) error {
	check := func(role string, list []modelconfig.IO) error {
		for i := range list {
			rank := len(list[i].BackendDims())
			if c.Batches() {
				rank++
			}
			if rank > maxRank {
				return fmt.Errorf("unable to load model '%s', %s '%s' has %d dimensions, more than the %d that are supported", c.Name, role, list[i].Name, rank, maxRank)
			}
		}
		return nil
	}
	if err := check("input", c.Inputs); err != nil {
		return err
	}
	return check("output", c.Outputs)
}

func allTensors(d declaration) error {
	for _, io := range slices.Concat(d.inputs, d.outputs) {
		if io.onnxType != onnxTensor {
			return fmt.Errorf("Unsupported ONNX Type '%s' for I/O '%s', expected 'ONNX_TYPE_TENSOR'.", //nolint:staticcheck,revive // Triton's text
				onnxTypeName(io.onnxType), io.name)
		}
	}
	return nil
}

func validateInput(c *modelconfig.Config, io *modelconfig.IO, allowed []sessionIO) error {
	if c.Sequences.Control(io.Name) != nil {
		return validateControl(c, io, findIO(allowed, io.Name))
	}
	if io.Optional && c.Batches() {
		return fmt.Errorf("unable to load model '%s', optional input '%s' is not supported for models that support batching",
			c.Name, io.Name)
	}
	d := findIO(allowed, io.Name)
	if d == nil {
		return notAllowed("input", io.Name, allowed)
	}
	if err := validateDatatype(c, io, "input", d); err != nil {
		return err
	}
	if io.Ragged {
		return validateRagged(c, io, d)
	}
	return validateDims(c, io, d, false)
}

// validateControl checks the input for a control of sequences.
func validateControl(c *modelconfig.Config, io *modelconfig.IO, d *sessionIO) error {
	if d == nil {
		return fmt.Errorf("configuration specified sequence control '%s', but model does not provide that input", io.Name)
	}
	dims := d.dims
	if c.Batches() {
		dims = dims[min(1, len(dims)):]
	}
	if d.hasShape && !dims.Equal(tensor.Shape{1}) {
		return fmt.Errorf("unable to load model '%s', sequence control '%s' in model has dims %s but dims [1] is expected", c.Name, io.Name, dims)
	}
	if elementOf(io.Datatype) != d.element {
		return fmt.Errorf("unable to load model '%s', sequence control '%s', the model expects data-type TYPE_%s but the model configuration specifies data-type %s",
			c.Name, io.Name, datatypeOf(d.element), io.Datatype.ConfigName())
	}
	return nil
}

func validateOutput(c *modelconfig.Config, io *modelconfig.IO, outputs []sessionIO) error {
	d := findIO(outputs, io.Name)
	if d == nil {
		return notAllowed("output", io.Name, outputs)
	}
	if err := validateDatatype(c, io, "output", d); err != nil {
		return err
	}
	if scatteredBy(c, io.Name) >= 0 {
		return nil // its dimensions are the model's affair
	}
	return validateDims(c, io, d, true)
}

// validateSource makes sure that there is always a tensor to compute from.
func validateSource(c *modelconfig.Config, source string) error {
	if c.Input(source).Optional {
		return fmt.Errorf("unable to load model '%s', optional input '%s' cannot be the source of batch inputs and outputs", c.Name, source)
	}
	return nil
}

// validateBatchInput checks the model's inputs that a batch input is for.
func validateBatchInput(c *modelconfig.Config, b *modelconfig.BatchInput, inputs []sessionIO) error {
	if err := validateSource(c, b.Source); err != nil {
		return err
	}
	for _, target := range b.Targets {
		d := findIO(inputs, target)
		if d == nil {
			return notAllowed("input", target, inputs)
		}
		if err := validateDatatype(c, &modelconfig.IO{Name: target, Datatype: b.Datatype}, "input", d); err != nil {
			return err
		}
		rank := 1
		if b.Kind == modelconfig.BatchItemShape {
			rank = 2
		}
		if d.hasShape && (len(d.dims) != rank || d.dims[0] != -1) {
			return fmt.Errorf("unable to load model '%s', batch input '%s' has %d dimensions of which the first varies, model provides %s",
				c.Name, target, rank, d.dims)
		}
	}
	return nil
}

func validateDatatype(c *modelconfig.Config, io *modelconfig.IO, role string, d *sessionIO) error {
	if elementOf(io.Datatype) == d.element {
		return nil
	}
	return fmt.Errorf("unable to load model '%s', configuration expects datatype %s for %s '%s', model provides TYPE_%s",
		c.Name, io.Datatype.ConfigName(), role, io.Name, datatypeOf(d.element))
}

func validateRagged(c *modelconfig.Config, io *modelconfig.IO, d *sessionIO) error {
	if io.Optional {
		return fmt.Errorf("unable to load model '%s', configuration expects model provides input with shape [-1] for ragged input '%s', which is not supported for optional input",
			c.Name, io.Name)
	}
	if d.dims.Equal(tensor.Shape{-1}) {
		return nil
	}
	return fmt.Errorf("unable to load model '%s', configuration expects model provides input with shape [-1] for ragged input '%s', model provides %s",
		c.Name, io.Name, d.dims)
}

// validateDims compares dimensions. For an input the configuration may narrow
// what the model leaves open; for an output it may leave open what the session
// knows, since it infers more than the model file says.
func validateDims(c *modelconfig.Config, io *modelconfig.IO, d *sessionIO, output bool) error {
	if !d.hasShape {
		return nil
	}
	if len(d.dims) == 0 && !c.Batches() {
		return validateScalar(c, io)
	}
	dims := io.BackendDims()
	if c.Batches() {
		if len(d.dims) == 0 || d.dims[0] != -1 {
			return fmt.Errorf("model '%s', tensor '%s': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is %s",
				c.Name, io.Name, d.dims)
		}
		dims = dims.Prepend(-1)
	}
	if compatible(d.dims, dims, output) {
		return nil
	}
	if c.Batches() {
		return fmt.Errorf("model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model configuration specifies %d dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape %s)",
			c.Name, io.Name, len(d.dims), d.dims, len(dims), dims)
	}
	return fmt.Errorf("model '%s', tensor '%s': the model expects %d dimensions (shape %s) but the model configuration specifies %d dimensions (shape %s)",
		c.Name, io.Name, len(d.dims), d.dims, len(dims), dims)
}

func validateScalar(c *modelconfig.Config, io *modelconfig.IO) error {
	if dims := io.BackendDims(); !allOnes(dims) {
		return fmt.Errorf("unable to load model '%s', scalar tensor '%s', should only provide 1 in the model configuration when the model doesn't support batching. Model configuration provided: %s.", //nolint:staticcheck,revive // Triton's text
			c.Name, io.Name, dims)
	}
	return nil
}

func allOnes(dims tensor.Shape) bool {
	return !slices.ContainsFunc(dims, func(d int64) bool { return d != 1 })
}

func compatible(model, config tensor.Shape, output bool) bool {
	if output {
		model, config = config, model
	}
	return slices.EqualFunc(model, config, func(open, d int64) bool { return open == -1 || open == d })
}

func findIO(list []sessionIO, name string) *sessionIO {
	for i := range list {
		if list[i].name == name {
			return &list[i]
		}
	}
	return nil
}

func notAllowed(role, name string, allowed []sessionIO) error {
	names := make([]string, len(allowed))
	for i := range allowed {
		names[i] = allowed[i].name
	}
	slices.Sort(names)
	return fmt.Errorf("unexpected inference %s '%s', allowed %ss are: %s", role, name, role, strings.Join(names, ", "))
}
