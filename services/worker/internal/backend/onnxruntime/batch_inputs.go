//go:build cgo

package onnxruntime

import (
	"encoding/binary"
	"math"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// batchInput is an input of the session that is made from the batch. It is
// immutable.
type batchInput struct {
	config  *modelconfig.BatchInput
	source  int // index of the configured input that it tells about
	target  string
	name    cname
	element int32
}

func newBatchInputs(c *modelconfig.Config) (list []batchInput) {
	for i := range c.BatchInputs {
		b := &c.BatchInputs[i]
		for _, target := range b.Targets {
			list = append(list, batchInput{
				config: b, source: indexOf(c.Inputs, b.Source), target: target,
				name: newName(target), element: elementOf(b.Datatype),
			})
		}
	}
	return list
}

// scatteredBy returns the index of the input by whose shape an output is
// given out, or -1.
func scatteredBy(c *modelconfig.Config, output string) int {
	for _, b := range c.BatchOutputs {
		for _, target := range b.Targets {
			if target == output {
				return indexOf(c.Inputs, b.Source)
			}
		}
	}
	return -1
}

func indexOf(list []modelconfig.IO, name string) int {
	for i := range list {
		if list[i].Name == name {
			return i
		}
	}
	return -1
}

// rank is the number of dimensions of the tensor.
func (m *batchInput) rank() int {
	if m.config.Kind == modelconfig.BatchItemShape {
		return 2
	}
	return 1
}

// makeBatchInputs works out the values of all batch inputs for the group, one after
// another in in.numbers, and the bytes that they take of the arena.
func (in *instance) makeBatchInputs(requests []*infer.Request) (bytes int64) {
	in.numbers, in.ends = in.numbers[:0], in.ends[:0]
	for i := range in.model.batchInputs {
		m := &in.model.batchInputs[i]
		start := len(in.numbers)
		in.numbers = in.appendNumbers(in.numbers, requests, m)
		in.ends = append(in.ends, len(in.numbers))
		bytes += aligned(m.elements(in.numbers[start:]) * m.size())
	}
	return bytes
}

// elements is how many the tensor has of whose numbers there are these.
func (m *batchInput) elements(numbers []int64) int64 {
	if m.config.Kind == modelconfig.BatchMaxElementCountAsShape {
		return numbers[0]
	}
	return int64(len(numbers))
}

func (m *batchInput) size() int64 { return int64(m.config.Datatype.Size()) }

// appendNumbers appends the numbers of a batch input for the group.
func (in *instance) appendNumbers(dst []int64, requests []*infer.Request, m *batchInput) []int64 {
	sum, most := int64(0), int64(0)
	if m.config.Kind == modelconfig.BatchAccumulatedElementCountWithZero {
		dst = append(dst, 0)
	}
	for _, i := range in.group {
		shape := in.input(requests, i, m.source).Shape
		count, _ := shape.Elements() // the shape was checked to be sane
		sum, most = sum+count, max(most, count)
		switch m.config.Kind {
		case modelconfig.BatchElementCount:
			dst = append(dst, count)
		case modelconfig.BatchAccumulatedElementCount, modelconfig.BatchAccumulatedElementCountWithZero:
			dst = append(dst, sum)
		case modelconfig.BatchItemShape, modelconfig.BatchItemShapeFlatten:
			for range requests[i].BatchSize {
				dst = in.model.inputs[m.source].appendRow(dst, shape)
			}
		}
	}
	if m.config.Kind == modelconfig.BatchMaxElementCountAsShape {
		return append(dst, most)
	}
	return dst
}

// addBatchInputs adds the batch inputs to the call.
func (in *instance) addBatchInputs() {
	start := 0
	for i := range in.model.batchInputs {
		m := &in.model.batchInputs[i]
		numbers := in.numbers[start:in.ends[i]]
		start = in.ends[i]
		data := in.arena.take(m.elements(numbers) * m.size())
		m.write(data, numbers)
		in.shape = append(in.shape[:0], m.elements(numbers))
		if m.rank() == 2 {
			in.shape = append(in.shape[:0], in.batchRows, int64(len(in.model.inputs[m.source].io.BackendDims())))
		}
		in.call.addInput(m.name, m.element, in.shape, data)
	}
}

// write writes the tensor's elements.
func (m *batchInput) write(data []byte, numbers []int64) {
	if m.config.Kind == modelconfig.BatchMaxElementCountAsShape {
		clear(data)
		return
	}
	for k, n := range numbers {
		bits := uint32(int32(n))
		if m.config.Datatype == tensor.FP32 {
			bits = math.Float32bits(float32(n))
		}
		binary.NativeEndian.PutUint32(data[k*4:], bits)
	}
}

// countScattered counts the elements that outputs must have which are given out
// by the shapes of inputs.
func (in *instance) countScattered(requests []*infer.Request) {
	for k := range in.outputs {
		o := &in.outputs[k]
		if o.binding.scatter < 0 {
			continue
		}
		for _, i := range in.group {
			in.shape = in.appendScattered(in.shape[:0], o, requests, i)
			n, ok := in.shape.Elements()
			if !ok || n > math.MaxInt64-o.scattered {
				o.scattered = -1
				break
			}
			o.scattered += n
		}
	}
}

// appendScattered appends the shape that a request sees of an output that is
// given out by its input's: the output's, of which the variable dimensions are
// those that stand at the same places in the input.
func (in *instance) appendScattered(dst tensor.Shape, o *output, requests []*infer.Request, i int) tensor.Shape {
	p := o.binding
	in.row = in.model.inputs[p.scatter].appendRow(in.row[:0], in.input(requests, i, p.scatter).Shape)
	if p.batches {
		dst = append(dst, requests[i].BatchSize)
	}
	return tensor.AppendReshaped(dst, p.io.BackendDims(), p.io.Dims, in.row)
}
