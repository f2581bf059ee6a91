package modelconfig

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// The parameters that let requests of different shapes share a batch. Triton ignores them.
const (
	PaddingInputsKey  = paddingPrefix + "inputs"
	PaddingValuesKey  = paddingPrefix + "values"
	PaddingBucketsKey = paddingPrefix + "buckets"
	PaddingOutputsKey = paddingPrefix + "outputs"

	paddingPrefix = "padding."
	powersOfTwo   = "powers_of_two"
)

const (
	// maxBucket bounds the memory that a slip of the keyboard asks for.
	maxBucket  = 1 << 24
	maxBuckets = 256
)

// Padding lets requests of different shapes share a batch: dimensions of inputs
// are padded up to the next of a few sizes, and those of outputs cut back.
type Padding struct {
	// Buckets are these sizes, ascending; none means the powers of two. A dimension larger than
	// all of them is not padded.
	Buckets []int64
	Inputs  []PaddedInput
	Outputs []TrimmedOutput
}

// PaddedInput is an input with dimensions that may be padded.
type PaddedInput struct {
	Name string
	Dims []int // without the batch dimension
	// Value is the element that it is padded with, as bytes.
	Value []byte
}

// TrimmedOutput is a dimension of an output that is cut back to the original length of a padded
// input dimension.
type TrimmedOutput struct {
	Name     string
	Dim      int
	Input    string
	InputDim int
}

// Size returns the padded size of a dimension of an input, not counting the batch dimension. A
// nil Padding pads nothing.
func (p *Padding) Size(input string, dim int, size int64) int64 {
	if p == nil || !p.pads(input, dim) {
		return size
	}
	if len(p.Buckets) == 0 {
		if size > maxBucket {
			return size
		}
		return 1 << bits.Len64(uint64(max(size, 1)-1))
	}
	if i, _ := slices.BinarySearch(p.Buckets, size); i < len(p.Buckets) {
		return p.Buckets[i]
	}
	return size
}

// Alike reports whether rows of two shapes, of one input, are padded to the
// same shape.
func (p *Padding) Alike(input string, a, b tensor.Shape) bool {
	if a.Equal(b) {
		return true
	}
	if p.Input(input) == nil || len(a) != len(b) {
		return false
	}
	for dim := range a {
		if p.Size(input, dim, a[dim]) != p.Size(input, dim, b[dim]) {
			return false
		}
	}
	return true
}

// Input returns the input of that name, or nil if it is not padded.
func (p *Padding) Input(name string) *PaddedInput {
	if p == nil {
		return nil
	}
	for i := range p.Inputs {
		if p.Inputs[i].Name == name {
			return &p.Inputs[i]
		}
	}
	return nil
}

func (p *Padding) pads(input string, dim int) bool {
	in := p.Input(input)
	return in != nil && slices.Contains(in.Dims, dim)
}

// paddingOf reads the parameters of a valid configuration; nil if it has none.
func paddingOf(c *inference.ModelConfig) *Padding {
	if !isPadded(c) {
		return nil
	}
	reader := paddingReader{config: c, report: new(report)}
	return reader.read()
}

func isPadded(c *inference.ModelConfig) bool {
	for key := range c.GetParameters() {
		if strings.HasPrefix(key, paddingPrefix) {
			return true
		}
	}
	return false
}

func (r *report) validatePadding(c *inference.ModelConfig) {
	if !isPadded(c) {
		return
	}
	keys := []string{PaddingInputsKey, PaddingValuesKey, PaddingBucketsKey, PaddingOutputsKey}
	for _, key := range sortedKeys(c.GetParameters()) {
		if strings.HasPrefix(key, paddingPrefix) && !slices.Contains(keys, key) {
			r.invalid(entry("parameters", key), "use "+nearestOf(key, keys), "parameter %s is none of padding", key)
		}
	}
	for _, key := range []string{PaddingInputsKey, PaddingBucketsKey} {
		if strings.Trim(c.GetParameters()[key].GetStringValue(), " ,") == "" {
			r.invalid("parameters", "add it, or remove the others that begin with "+paddingPrefix, "padding needs the parameter %s", key)
		}
	}
	if !backends.Get(c.GetBackend()).Padding {
		r.add(errs.Unsupported, "parameters", "remove them", "parameters of padding are not supported by the backend of model "+r.model)
	}
	if c.GetDynamicBatching() == nil || c.GetMaxBatchSize() < 1 {
		r.invalid("dynamic_batching", "add dynamic_batching { } and a max_batch_size, or remove the parameters that begin with "+paddingPrefix, "padding needs dynamic batching")
	}
	reader := paddingReader{config: c, report: r}
	reader.read()
}

// paddingReader reads the parameters of padding and reports what is wrong with
// them.
type paddingReader struct {
	*report
	config  *inference.ModelConfig
	padding Padding
}

func (r *paddingReader) read() *Padding {
	r.readBuckets()
	r.readInputs()
	r.readValues()
	r.readOutputs()
	return &r.padding
}

// entries are the parts of a parameter.
func (r *paddingReader) entries(key string) (list []string) {
	for part := range strings.SplitSeq(r.config.GetParameters()[key].GetStringValue(), ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

func (r *paddingReader) fault(key, fix, format string, args ...any) {
	r.invalid(entry("parameters", key), fix, "parameter "+key+": "+format, args...)
}

func (r *paddingReader) readBuckets() {
	list := r.entries(PaddingBucketsKey)
	if slices.Equal(list, []string{powersOfTwo}) {
		return
	}
	if len(list) > maxBuckets {
		r.fault(PaddingBucketsKey, "a few sizes are enough", "%d sizes are more than the %d that are allowed", len(list), maxBuckets)
		return
	}
	last := int64(0)
	for _, text := range list {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= last || n > maxBucket {
			r.fault(PaddingBucketsKey, "for example 16,32,64, or "+powersOfTwo, "sizes must ascend from 1 to %d at the most, got %q", maxBucket, text)
			return
		}
		r.padding.Buckets = append(r.padding.Buckets, n)
		last = n
	}
}

func (r *paddingReader) readInputs() {
	for _, text := range r.entries(PaddingInputsKey) {
		name, dim, ok := r.dimension(PaddingInputsKey, text)
		if !ok {
			continue
		}
		in := named(r.config.GetInput(), name)
		switch {
		case in == nil:
			r.fault(PaddingInputsKey, "name an input of the configuration", "unknown input '%s'", name)
		case r.padding.pads(name, dim):
			r.fault(PaddingInputsKey, "name each dimension once", "%s is named more than once", text)
		case in.GetAllowRaggedBatch():
			r.fault(PaddingInputsKey, "remove allow_ragged_batch, or the input from the parameter", "input '%s' is ragged, and so is never padded", name)
		case r.variable(PaddingInputsKey, "input", in, dim):
			r.pad(in, dim)
		}
	}
}

// pad adds a dimension to the inputs.
func (r *paddingReader) pad(in *inference.ModelInput, dim int) {
	if known := r.padding.Input(in.GetName()); known != nil {
		known.Dims = append(known.Dims, dim)
		return
	}
	zero := make([]byte, datatype(in.GetDataType()).Size())
	r.padding.Inputs = append(r.padding.Inputs, PaddedInput{Name: in.GetName(), Dims: []int{dim}, Value: zero})
}

// dimension reads NAME[DIM].
func (r *paddingReader) dimension(key, text string) (name string, dim int, ok bool) {
	at := strings.LastIndexByte(text, '[')
	if at > 0 && strings.HasSuffix(text, "]") {
		n, err := strconv.Atoi(text[at+1 : len(text)-1])
		if err == nil && n >= 0 {
			return text[:at], n, true
		}
	}
	r.fault(key, "for example TOKENS[0], where 0 is the first of dims", "%q is no dimension of a tensor", text)
	return "", 0, false
}

// variable reports whether a dimension of a tensor may be padded or cut.
func (r *paddingReader) variable(key, role string, t declared, dim int) bool {
	switch {
	case t.GetDataType() == inference.DataType_TYPE_STRING:
		r.fault(key, "remove it", "%s '%s' is of TYPE_STRING, which is not padded", role, t.GetName())
	case t.GetReshape() != nil:
		r.fault(key, "remove reshape, or the "+role+" from the parameter", "%s '%s' has a reshape", role, t.GetName())
	case dim >= len(t.GetDims()):
		r.fault(key, "count the dims from 0, without the batch dimension", "%s '%s' has %d dims, and none of number %d", role, t.GetName(), len(t.GetDims()), dim)
	case t.GetDims()[dim] != variable:
		r.fault(key, "write -1 for the dimension if the model allows it", "dimension %d of %s '%s' has the size %d", dim, role, t.GetName(), t.GetDims()[dim])
	default:
		return true
	}
	return false
}

func (r *paddingReader) readValues() {
	for _, text := range r.entries(PaddingValuesKey) {
		at := strings.LastIndexByte(text, '=')
		if at < 0 {
			r.fault(PaddingValuesKey, "for example TOKENS=1", "%q is no input with a value", text)
			continue
		}
		in := r.padding.Input(strings.TrimSpace(text[:at]))
		if in == nil {
			r.fault(PaddingValuesKey, "add it to "+PaddingInputsKey, "'%s' is no input that is padded", text[:at])
			continue
		}
		d := datatype(named(r.config.GetInput(), in.Name).GetDataType())
		value, ok := element(d, strings.TrimSpace(text[at+1:]))
		if !ok {
			r.fault(PaddingValuesKey, "give a number that the datatype has; of FP16 and BF16 it is 0", "%q is no value for input '%s' of %s", text[at+1:], in.Name, d.ConfigName())
			continue
		}
		in.Value = value
	}
}

func (r *paddingReader) readOutputs() {
	for _, text := range r.entries(PaddingOutputsKey) {
		left, right, ok := strings.Cut(text, "]=")
		if !ok {
			r.fault(PaddingOutputsKey, "for example LOGITS[0]=TOKENS[0]", "%q is no dimension of an output with one of an input", text)
			continue
		}
		name, dim, ok := r.dimension(PaddingOutputsKey, left+"]")
		if !ok {
			continue
		}
		input, inputDim, ok := r.dimension(PaddingOutputsKey, right)
		if !ok {
			continue
		}
		out := named(r.config.GetOutput(), name)
		switch {
		case out == nil:
			r.fault(PaddingOutputsKey, "name an output of the configuration", "unknown output '%s'", name)
		case !r.padding.pads(input, inputDim):
			r.fault(PaddingOutputsKey, "add it to "+PaddingInputsKey, "%s is no dimension that is padded", right)
		case slices.ContainsFunc(r.padding.Outputs, func(t TrimmedOutput) bool { return t.Name == name && t.Dim == dim }):
			r.fault(PaddingOutputsKey, "name each dimension once", "%s] is named more than once", left)
		case r.scattered(name):
			r.fault(PaddingOutputsKey, "remove it from one of them", "output '%s' is a batch_output", name)
		case r.variable(PaddingOutputsKey, "output", out, dim):
			r.padding.Outputs = append(r.padding.Outputs, TrimmedOutput{Name: name, Dim: dim, Input: input, InputDim: inputDim})
		}
	}
}

func (r *paddingReader) scattered(output string) bool {
	return slices.ContainsFunc(r.config.GetBatchOutput(), func(b *inference.BatchOutput) bool { return slices.Contains(b.GetTargetName(), output) })
}

// named returns the tensor of that name, or nil.
func named[T declared](list []T, name string) (t T) {
	if i := slices.IndexFunc(list, func(t T) bool { return t.GetName() == name }); i >= 0 {
		return list[i]
	}
	return t
}

// element reads a number as one element of a datatype.
func element(d tensor.Datatype, text string) ([]byte, bool) {
	bits := 8 * d.Size()
	data := make([]byte, 8)
	var err error
	var n uint64
	switch d {
	case tensor.Bool:
		var on bool
		if on, err = backends.ParseBool(text); on {
			n = 1
		}
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		n, err = strconv.ParseUint(text, 10, bits)
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64:
		var signed int64
		signed, err = strconv.ParseInt(text, 10, bits)
		n = uint64(signed)
	case tensor.FP32:
		var f float64
		f, err = strconv.ParseFloat(text, bits)
		n = uint64(math.Float32bits(float32(f)))
	case tensor.FP64:
		var f float64
		f, err = strconv.ParseFloat(text, bits)
		n = math.Float64bits(f)
	default: // FP16 and BF16
		return data[:d.Size()], text == "0"
	}
	binary.LittleEndian.PutUint64(data, n)
	return data[:d.Size()], err == nil
}
