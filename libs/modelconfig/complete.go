package modelconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// DefaultMaxBatchSize is the max_batch_size that Triton gives to a model that
// can batch and does not say up to what size.
const DefaultMaxBatchSize = 4

// MaxBatchSizeSetting is the name that --backend-config has for another value
// than [DefaultMaxBatchSize].
const MaxBatchSizeSetting = "default-max-batch-size"

// Completion is how [Load] completes a configuration from the model: inputs, outputs,
// max_batch_size and dynamic batching. For backends with a header, these are read without
// loading the model; code of backends that complete themselves is run.
type Completion struct {
	// Versions are the versions that exist. The highest that the version
	// policy keeps is read; without any nothing is completed, and what is
	// missing is not reported either: the missing version is.
	Versions []int64
	// Header reads the header of a version's model file, which may be a
	// directory, as the backend has it.
	Header func(d backends.Descriptor, version int64, filename string) (*onnxheader.Header, error)
	// Ask has the code of a version's model complete a configuration, which is
	// given and returned as [JSON] writes it; tensors says that inputs and
	// outputs are there, and that no code but the version's own would add to
	// them. It is called for backends that complete themselves. nil
	// asks nobody, and nothing counts as missing.
	Ask func(version int64, config []byte, tensors bool) ([]byte, error)
	// Strict completes nothing from the model file, which is only compared with the repaired
	// text.
	Strict bool
	// MaxBatchSize applies to models that can batch and do not set a size; 0 disables batching
	// for them.
	MaxBatchSize int32
}

// complete fills in what c leaves out, and reports what stands against it.
// It returns false if there was nothing to complete from, and so no telling
// whether inputs and outputs are missing.
func (r *report) complete(c *inference.ModelConfig, dir Directory) bool {
	how := dir.Complete
	selected, _ := SelectVersions(c.GetVersionPolicy(), how.Versions)
	if len(selected) == 0 {
		return false
	}
	d := backends.Get(c.GetBackend())
	if dir.asks(c.GetBackend()) && (!d.CompletesTensors || !hasTensors(c)) {
		return r.ask(c, dir, selected[len(selected)-1])
	}
	if d.Header == nil || hasTensors(c) {
		return true
	}
	if !filepath.IsLocal(c.GetDefaultModelFilename()) {
		return false // reported by its own rule
	}
	version := selected[len(selected)-1]
	h, err := how.Header(d, version, c.GetDefaultModelFilename())
	r.file = fmt.Sprintf("%d/%s", version, c.GetDefaultModelFilename())
	defer func() { r.file = "" }()
	if err != nil {
		r.unreadable(err)
		return false
	}
	before := len(r.problems)
	r.completeBatch(c, h, how.MaxBatchSize)
	if len(c.GetInput()) == 0 {
		r.completeInputs(c, h)
	}
	if len(c.GetOutput()) == 0 {
		r.completeOutputs(c, h)
	}
	return len(r.problems) == before
}

func hasTensors(c *inference.ModelConfig) bool {
	return len(c.GetInput())+len(c.GetBatchInput()) > 0 && len(c.GetOutput()) > 0
}

func (r *report) unreadable(err error) {
	fix := "export the model again, or list input and output in the configuration"
	if errors.Is(err, fs.ErrNotExist) {
		fix = "put it there, or name it by default_model_filename"
	}
	r.autofill("", fix, "%v", err)
}

// autofill adds a problem of the completion.
func (r *report) autofill(field, fix, format string, args ...any) {
	r.add(errs.ConfigInvalid, field, fix, fmt.Sprintf("autofill failed for model '%s': %s", r.model, fmt.Sprintf(format, args...)))
}

// completeBatch sets max_batch_size and turns dynamic batching on. A model can
// batch if the first dimension of all its tensors is open.
func (r *report) completeBatch(c *inference.ModelConfig, h *onnxheader.Header, size int32) {
	if fixed := unbatched(h); fixed != nil {
		if c.GetMaxBatchSize() > 0 {
			r.file = ""
			r.autofill("max_batch_size", fmt.Sprintf("set it to 0 or remove it; '%s' has shape %s in the model", fixed.Name, fixed.Shape()),
				"model does not support batching while non-zero max_batch_size is specified")
		}
		return
	}
	if c.GetMaxBatchSize() == 0 {
		c.MaxBatchSize = size
	}
	if c.GetMaxBatchSize() > 1 && c.GetSchedulingChoice() == nil {
		c.SchedulingChoice = &inference.ModelConfig_DynamicBatching{DynamicBatching: new(inference.ModelDynamicBatching)}
	}
}

// unbatched returns a tensor that has no open first dimension, or nil. One of
// unknown rank says nothing either way.
func unbatched(h *onnxheader.Header) *onnxheader.Value {
	for _, v := range slices.Concat(required(h), h.Outputs) {
		if shape := v.Shape(); v.HasShape && (len(shape) == 0 || shape[0] != variable) {
			return &v
		}
	}
	return nil
}

// required leaves out inputs that the model has a value for: they are weights
// that happen to be listed as inputs.
func required(h *onnxheader.Header) []onnxheader.Value {
	return slices.DeleteFunc(slices.Clone(h.Inputs), func(v onnxheader.Value) bool { return v.HasDefault })
}

// givenTensors names the tensors of the model that the server gives and takes: no
// client does.
func givenTensors(c *inference.ModelConfig) map[string]bool {
	given := make(map[string]bool)
	s := c.GetSequenceBatching()
	for _, in := range s.GetControlInput() {
		given[in.GetName()] = true
	}
	for _, state := range s.GetState() {
		given[state.GetInputName()], given[state.GetOutputName()] = true, true
	}
	return given
}

func (r *report) completeInputs(c *inference.ModelConfig, h *onnxheader.Header) {
	given := givenTensors(c)
	for _, v := range required(h) {
		if given[v.Name] {
			continue
		}
		dims, reshape := completeDims(v, c.GetMaxBatchSize() > 0)
		if t := r.completeType("input", v); t.Valid() {
			c.Input = append(c.Input, &inference.ModelInput{Name: v.Name, DataType: inference.DataType(t), Dims: dims, Reshape: reshape})
		}
	}
}

func (r *report) completeOutputs(c *inference.ModelConfig, h *onnxheader.Header) {
	given := givenTensors(c)
	for _, v := range h.Outputs {
		if given[v.Name] {
			continue
		}
		dims, reshape := completeDims(v, c.GetMaxBatchSize() > 0)
		if t := r.completeType("output", v); t.Valid() {
			c.Output = append(c.Output, &inference.ModelOutput{Name: v.Name, DataType: inference.DataType(t), Dims: dims, Reshape: reshape})
		}
	}
}

// completeType gives the tensor's datatype, or reports that it cannot be
// completed: the protocol has no such type, or the file does not even say the
// rank, which a runtime may infer but a client must be told.
func (r *report) completeType(role string, v onnxheader.Value) tensor.Datatype {
	const fix = "serve a model that has tensors of the protocol's datatypes; a Cast at its border is enough for other elements"
	if v.Kind != onnxheader.KindTensor {
		r.autofill("", fix, "Unsupported ONNX Type '%s' for I/O '%s', expected 'ONNX_TYPE_TENSOR'.", v.Kind, v.Name)
		return tensor.Invalid
	}
	if !v.HasShape {
		r.autofill("", "list "+role+" with its dims in the configuration, or save the model with its shapes inferred", "%s '%s' has no shape in the model", role, v.Name)
		return tensor.Invalid
	}
	t := v.Datatype()
	if !t.Valid() {
		r.autofill("", fix, "%s '%s' has elements of ONNX's type %d, which the inference protocol does not have", role, v.Name, v.Element)
	}
	return t
}

// completeDims gives the dimensions without the batch's. The format cannot
// say a scalar, so that one element is declared in its place, which a model
// that batches gets reshaped to none.
func completeDims(v onnxheader.Value, batches bool) ([]int64, *inference.ModelTensorReshape) {
	dims := []int64(v.Shape())
	if batches && len(dims) > 0 {
		dims = dims[1:]
	}
	if len(dims) > 0 {
		return dims, nil
	}
	if batches {
		return []int64{1}, new(inference.ModelTensorReshape)
	}
	return []int64{1}, nil
}
