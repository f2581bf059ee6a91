package cache

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// What an entry is charged in addition to its data and texts, in bytes: roughly the memory of the values that
// hold them.
const (
	entryBytes     = 256
	outputBytes    = 256
	parameterBytes = 64
)

// entry is an immutable copy of a response.
type entry struct {
	outputs    []infer.Tensor // on the heap
	parameters []infer.Parameter
	bytes      int64
}

// weigh returns the size of a response as an entry, in bytes.
func weigh(r *infer.Response) int64 {
	n := entryBytes + r.OutputBytes()
	for i := range r.Outputs {
		n += outputBytes + int64(len(r.Outputs[i].Name)+8*len(r.Outputs[i].Shape))
	}
	for _, p := range r.Parameters {
		text, _ := p.Value.(string)
		n += parameterBytes + int64(len(p.Key)+len(text))
	}
	return n
}

// newEntry copies a response. It returns nil if its outputs cannot be read here.
func newEntry(r *infer.Response) *entry {
	e := &entry{parameters: slices.Clone(r.Parameters), bytes: weigh(r)}
	for i := range r.Outputs {
		out := r.Outputs[i]
		data, err := out.Data.Bytes()
		if err != nil {
			return nil
		}
		out.Shape, out.Data = slices.Clone(out.Shape), tensor.InHeap(slices.Clone(data))
		e.outputs = append(e.outputs, out)
	}
	return e
}

// response returns a final response that shares the entry's data.
func (e *entry) response() *infer.Response {
	r := &infer.Response{Final: true, Outputs: slices.Clone(e.outputs), Parameters: slices.Clone(e.parameters)}
	for i := range r.Outputs {
		r.Outputs[i].Shape, r.Outputs[i].Data = slices.Clone(r.Outputs[i].Shape), r.Outputs[i].Data.Retain()
	}
	return r
}
