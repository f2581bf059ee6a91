package core

import (
	"errors"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Check validates a request against its model before it is queued, in the order and with the error texts of
// Triton's core, and sets its batch size. If several inputs are invalid, Triton's core reports the last one,
// since it stores inputs in a hash table.
func Check(v *Version, r *infer.Request) error {
	c := &checker{config: v.Config, model: v.Ref.Name, request: r}
	for _, step := range []func() error{c.descriptor, c.key, c.outputs, c.inputNames, c.rows, c.tensors, c.correlation} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type checker struct {
	config  *modelconfig.Config
	model   string
	request *infer.Request
}

// maxParameters is how many parameters a request may have, which is also how many a gRPC message may have.
const maxParameters = 8192

// descriptor refuses texts and shapes that are too large to send. Its error does not name the request, whose ID
// may be the text that is too large.
func (c *checker) descriptor() error {
	if n := len(c.request.Parameters); n > maxParameters {
		return errs.New(errs.BodyTooLarge, "the request has %d parameters, %d is the most: send what is much as a tensor", n, maxParameters).WithModel(c.model)
	}
	n := c.request.DescriptorBytes()
	if n <= infer.MaxDescriptorBytes {
		return nil
	}
	return errs.New(errs.BodyTooLarge, "the request's id, correlation id, parameters, names and shapes have %d bytes together, %d is the most: send what is large as a tensor",
		n, infer.MaxDescriptorBytes).WithModel(c.model)
}

// refuse returns an error with the prefix in which Triton names the request.
func (c *checker) refuse(reason errs.Reason, format string, args ...any) error {
	id := c.request.ID
	if id == "" {
		id = "<id_unknown>"
	}
	return errs.New(reason, "[request id: %s] "+format, append([]any{id}, args...)...).WithModel(c.model)
}

// unknown refuses a tensor that the model does not have. As in Triton, its text names the model but not the
// request.
func (c *checker) unknown(reason errs.Reason, kind, name string) error {
	return errs.New(reason, "unexpected inference %s '%s' for model '%s'", kind, name, c.model).WithModel(c.model)
}

func (c *checker) outputs() error {
	for i, o := range c.request.Outputs {
		if c.config.Output(o.Name) == nil {
			return c.unknown(errs.OutputUnexpected, "output", o.Name)
		}
		if slices.ContainsFunc(c.request.Outputs[:i], func(p infer.Output) bool { return p.Name == o.Name }) {
			return c.refuse(errs.TensorDuplicate, "output '%s' already exists in request", o.Name)
		}
	}
	return nil
}

func (c *checker) inputNames() error {
	inputs := c.request.Inputs
	if name, ok := duplicate(inputs); ok {
		return c.refuse(errs.TensorDuplicate, "input '%s' already exists in request", name)
	}
	missing, required := c.missing()
	if len(inputs) < required || len(inputs) > len(c.config.Inputs) {
		return c.wrongCount(missing, required)
	}
	for i := range inputs {
		if c.config.Input(inputs[i].Name) == nil {
			return c.unknown(errs.InputUnexpected, "input", inputs[i].Name)
		}
	}
	if len(missing) > 0 {
		return c.wrongCount(missing, required)
	}
	return nil
}

// fewInputs is the number of inputs up to which names are compared pairwise: a map would cost more, and most
// requests have fewer.
const fewInputs = 16

// duplicate returns the first name that an earlier input also has.
func duplicate(inputs []infer.Tensor) (name string, ok bool) {
	if len(inputs) <= fewInputs {
		for i := range inputs {
			if slices.ContainsFunc(inputs[:i], func(p infer.Tensor) bool { return p.Name == inputs[i].Name }) {
				return inputs[i].Name, true
			}
		}
		return "", false
	}
	seen := make(map[string]bool, len(inputs))
	for i := range inputs {
		if seen[inputs[i].Name] {
			return inputs[i].Name, true
		}
		seen[inputs[i].Name] = true
	}
	return "", false
}

// missing returns the required inputs that the request lacks, and the number of required inputs.
func (c *checker) missing() (names []string, required int) {
	for i := range c.config.Inputs {
		io := &c.config.Inputs[i]
		if io.Optional {
			continue
		}
		required++
		if !slices.ContainsFunc(c.request.Inputs, func(p infer.Tensor) bool { return p.Name == io.Name }) {
			names = append(names, io.Name)
		}
	}
	return names, required
}

func (c *checker) wrongCount(missing []string, required int) error {
	got := make([]string, 0, len(c.request.Inputs))
	for _, in := range slices.Backward(c.request.Inputs) {
		got = append(got, in.Name)
	}
	reason := errs.InputMissing
	if len(missing) == 0 {
		reason = errs.InputUnexpected
	}
	const rest = "Got input(s) [%s], but missing required input(s) [%s]. Please provide all required input(s)."
	if total := len(c.config.Inputs); required != total {
		return c.refuse(reason, "expected number of inputs between %d and %d but got %d inputs for model '%s'. "+rest,
			required, total, len(got), c.model, quoted(got), quoted(missing))
	}
	return c.refuse(reason, "expected %d inputs but got %d inputs for model '%s'. "+rest,
		required, len(got), c.model, quoted(got), quoted(missing))
}

func quoted(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "'" + strings.Join(names, "','") + "'"
}

func (c *checker) rows() error {
	c.request.BatchSize = 1
	if !c.config.Batches() {
		return nil
	}
	for i := range slices.Backward(c.request.Inputs) {
		in := &c.request.Inputs[i]
		if len(in.Shape) == 0 {
			return c.refuse(errs.ShapeMismatch, "input '%s' has no shape but model requires batch dimension for '%s'", in.Name, c.model)
		}
		if i == len(c.request.Inputs)-1 {
			c.request.BatchSize = in.Shape[0]
		} else if in.Shape[0] != c.request.BatchSize {
			return c.refuse(errs.ShapeMismatch, "input '%s' batch size does not match other inputs for '%s'", in.Name, c.model)
		}
	}
	if c.request.BatchSize == 0 {
		// Requests without rows would never fill a batch, however many there are.
		return c.refuse(errs.ShapeMismatch, "inference request batch-size must be > 0 for '%s'", c.model)
	}
	if c.request.BatchSize > c.config.MaxBatchSize {
		return c.refuse(errs.BatchSizeExceeded, "inference request batch-size must be <= %d for '%s'", c.config.MaxBatchSize, c.model)
	}
	return nil
}

func (c *checker) tensors() error {
	for i := range slices.Backward(c.request.Inputs) {
		in := &c.request.Inputs[i]
		io := c.config.Input(in.Name)
		if in.Datatype != io.Datatype {
			return c.refuse(errs.DatatypeMismatch, "inference input '%s' data-type is '%s', but model '%s' expects '%s'",
				in.Name, datatypeName(in.Datatype), c.model, io.Datatype)
		}
		if err := c.shape(in, io); err != nil {
			return err
		}
		if err := c.size(in); err != nil {
			return err
		}
	}
	return nil
}

// datatypeName returns Triton's name of a datatype, or "<invalid>" for an unknown one, whatever the client
// wrote.
func datatypeName(d tensor.Datatype) string {
	if !d.Valid() {
		return "<invalid>"
	}
	return d.String()
}

// batchNote ends the error for a wrong shape if the batch dimension may be the cause.
const batchNote = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each " +
	"input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting " +
	"max_batch_size to zero. See the model configuration docs for more info on max_batch_size."

func (c *checker) shape(in *infer.Tensor, io *modelconfig.IO) error {
	if !in.Shape.Fixed() {
		return c.refuse(errs.ShapeMismatch, "All input dimensions should be specified for input '%s' for model '%s', got %s", in.Name, c.model, in.Shape)
	}
	dims := in.Shape
	if c.config.Batches() {
		dims = dims[1:]
	}
	if io.Dims.Admits(dims) {
		return nil
	}
	note := ""
	if c.config.Batches() {
		note = batchNote
	}
	return c.refuse(errs.ShapeMismatch, "unexpected shape for input '%s' for model '%s'. Expected %s, got %s. %s",
		in.Name, c.model, c.config.ClientShape(io), in.Shape, note)
}

func (c *checker) size(in *infer.Tensor) error {
	if in.Datatype == tensor.Bytes {
		return c.strings(in)
	}
	want, ok := in.Shape.ByteSize(in.Datatype)
	if !ok {
		return c.refuse(errs.ShapeMismatch, "input '%s' for model '%s' has shape %s, whose size in bytes is out of range", in.Name, c.model, in.Shape)
	}
	if in.Data.Length != want {
		return c.refuse(errs.ByteSizeMismatch, "input byte size mismatch for input '%s' for model '%s'. Expected %d, got %d",
			in.Name, c.model, want, in.Data.Length)
	}
	return nil
}

func (c *checker) strings(in *infer.Tensor) error {
	want, ok := in.Shape.Elements()
	if !ok {
		return c.refuse(errs.ShapeMismatch, "input '%s' for model '%s' has shape %s, whose number of elements is out of range", in.Name, c.model, in.Shape)
	}
	if in.Data.Place == tensor.Remote { // the worker that fetches the data checks it
		return nil
	}
	data, err := in.Data.Bytes()
	if err != nil {
		return err
	}
	got, err := tensor.CountBytes(data, want)
	switch {
	case err != nil:
		return c.incomplete(in.Name, err)
	case got > want:
		return c.refuse(errs.ByteSizeMismatch, "unexpected number of string elements %d for inference input '%s' for model '%s', expecting %d", got, in.Name, c.model, want)
	case got < want:
		return c.refuse(errs.ByteSizeMismatch, "expected %d string elements for inference input '%s' for model '%s', got %d", want, in.Name, c.model, got)
	}
	return nil
}

// maxKeyBytes is the longest string that Triton accepts as a correlation ID.
const maxKeyBytes = 128

func (c *checker) key() error {
	if len(c.request.Sequence.Key) <= maxKeyBytes {
		return nil
	}
	return errs.New(errs.Unsupported, "string correlation ID cannot be longer than %d characters", maxKeyBytes).WithModel(c.model)
}

// correlation checks the type of the correlation ID against the model's control input for it.
func (c *checker) correlation() error {
	s := &c.request.Sequence
	if c.config.Sequences == nil || s.ID == 0 && s.Key == "" {
		return nil
	}
	given := tensor.Uint64
	if s.Key != "" {
		given = tensor.Bytes
	}
	for _, control := range c.config.Sequences.Controls {
		if control.Kind == modelconfig.ControlCorrelationID && (control.Datatype == tensor.Bytes) != (given == tensor.Bytes) {
			return c.refuse(errs.DatatypeMismatch, "sequence batching control '%s' data-type is '%s', but model '%s' expects '%s'",
				control.Input, given, c.model, control.Datatype)
		}
	}
	return nil
}

// incomplete refuses a BYTES input that ends within an element.
func (c *checker) incomplete(name string, err error) error {
	var short *tensor.IncompleteError
	if !errors.As(err, &short) {
		return err
	}
	if errors.Is(err, tensor.ErrIncompleteLength) {
		return c.refuse(errs.TensorDataInvalid,
			"incomplete string length indicator for inference input '%s' for model '%s', expecting %d bytes but only %d bytes available. "+
				"Please make sure the string length indicator is in one buffer.",
			name, c.model, short.Want, short.Have)
	}
	return errs.New(errs.TensorDataInvalid,
		"incomplete string data for inference input '%s', expecting string of length %d but only %d bytes available",
		name, short.Want, short.Have).WithModel(c.model)
}
