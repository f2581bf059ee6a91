package modelconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// variable is the dimension of any size.
const variable = -1

// declared is what inputs and outputs have in common.
type declared interface {
	GetName() string
	GetDataType() inference.DataType
	GetDims() []int64
	GetReshape() *inference.ModelTensorReshape
}

func (r *report) validateTensors(c *inference.ModelConfig) {
	batches := c.GetMaxBatchSize() > 0
	inputs, outputs := make(map[string]bool), make(map[string]bool)
	for i, in := range c.GetInput() {
		at := index("input", i)
		r.validateTensor(at, "model input", in, batches, inputs)
		if in.GetFormat() != inference.ModelInput_FORMAT_NONE && len(in.GetDims()) != 3 {
			r.invalid(at+".format", "remove format or give three dims", "model input NHWC/NCHW require 3 dims")
		}
	}
	for i, out := range c.GetOutput() {
		r.validateTensor(index("output", i), "model output", out, batches, outputs)
	}
}

// missing reports inputs and outputs that neither the configuration nor,
// where it could, the model file gave.
func missing(c *inference.ModelConfig, completed bool) Problems {
	fix := "list each with name, data_type and dims, or let them be read from the model file: start without --disable-auto-complete-config"
	if c.GetPlatform() == platformEnsemble {
		fix = "list the tensors that requests give and get, each with name, data_type and dims"
	} else if completed {
		fix = "list each with name, data_type and dims; they are read from the model file for backend " + strings.Join(backends.Completed(), ", ") + " alone"
	}
	r := &report{model: c.GetName()}
	if len(c.GetInput()) == 0 {
		r.invalid("input", fix, "the configuration has no 'input'")
	}
	if len(c.GetOutput()) == 0 {
		r.invalid("output", fix, "the configuration has no 'output'")
	}
	return r.problems
}

// validateTensor checks one tensor. kind begins the messages; seen collects
// the names of its kind.
func (r *report) validateTensor(at, kind string, t declared, batches bool, seen map[string]bool) {
	if t.GetName() == "" {
		r.invalid(at+".name", "name the tensor as the model does", "%s must specify 'name'", kind)
	} else if seen[t.GetName()] {
		r.invalid(at+".name", "name each tensor once", "%s '%s' is specified more than once", kind, t.GetName())
	}
	seen[t.GetName()] = true
	subject := fmt.Sprintf("%s '%s'", kind, t.GetName())
	if !datatype(t.GetDataType()).Valid() {
		r.invalid(at+".data_type", "for example TYPE_FP32", "%s must specify 'data_type'", subject)
	}
	if r.validateDims(at+".dims", subject, t.GetDims()) && t.GetReshape() != nil {
		r.validateReshape(at+".reshape", subject, t, batches)
	}
}

// validateDims returns false where products of the dimensions would mislead.
func (r *report) validateDims(at, subject string, dims []int64) bool {
	if len(dims) == 0 {
		r.invalid(at, "a scalar is dims: [ 1 ] with reshape: { shape: [ ] }", "%s must specify 'dims'", subject)
	}
	for i, d := range dims {
		if d < 1 && d != variable {
			r.invalid(index(at, i), "give its size, or -1 if it varies", "%s dimension must be integer >= 1, or -1 to indicate a variable-size dimension", subject)
			return false
		}
	}
	if _, ok := fixedProduct(dims); !ok {
		r.invalid(at, "give sizes whose product a server can hold", "%s has more elements than 2^63-1", subject)
		return false
	}
	return true
}

// admits reports whether dims has the sizes of pattern, in which -1 is any.
func admits(pattern, dims []int64) bool {
	return slices.EqualFunc(pattern, dims, func(p, d int64) bool { return p == variable || p == d })
}

func (r *report) validateReshape(at, subject string, t declared, batches bool) {
	shape := t.GetReshape().GetShape()
	if len(shape) == 0 && !batches {
		r.invalid(at, "give the shape at least one dimension", "%s cannot have empty reshape for non-batching model as scalar tensors are not supported", subject)
		return
	}
	for i, d := range shape {
		if d < 1 && d != variable {
			r.invalid(index(at+".shape", i), "give its size, or -1 if it varies", "%s reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension", subject)
			return
		}
	}
	if _, ok := fixedProduct(shape); !ok {
		r.invalid(at, "give sizes whose product a server can hold", "%s has a reshape of more elements than 2^63-1", subject)
		return
	}
	from, to := segments(t.GetDims()), segments(shape)
	const fix = "reshape keeps the number of elements, also between variable dimensions"
	if len(from) != len(to) {
		r.invalid(at, fix, "%s has different number of variable-size dimensions for dims and reshape", subject)
		return
	}
	if !slices.Equal(from, to) {
		r.invalid(at, fix, "%s has different size for dims and reshape", subject)
	}
}

// segments gives the element counts between variable dimensions: [2,3,-1,4]
// has 6 and 4.
func segments(dims []int64) []int64 {
	counts := []int64{1}
	for _, d := range dims {
		if d == variable {
			counts = append(counts, 1)
			continue
		}
		counts[len(counts)-1] *= d
	}
	return counts
}

// fixedProduct is the product of the dimensions that are not variable; false
// if it overflows.
func fixedProduct(dims []int64) (int64, bool) {
	return tensor.Shape(slices.DeleteFunc(slices.Clone(dims), func(d int64) bool { return d == variable })).Elements()
}

// datatype turns the format's number into the protocol's type; Invalid for a
// number that is none.
func datatype(d inference.DataType) tensor.Datatype {
	if d < 0 || d > 255 || !tensor.Datatype(d).Valid() {
		return tensor.Invalid
	}
	return tensor.Datatype(d)
}

func sortedKeys[K string | uint64, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
