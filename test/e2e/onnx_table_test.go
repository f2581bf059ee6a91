package e2e

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// tested is a generated model and the requests with which its answers are
// compared with ONNX Runtime's.
type tested struct {
	name     string
	model    onnxmodel.Model
	maxBatch int
	// inputs and outputs are the configuration's, by the tensor's name.
	inputs, outputs []declared
	cases           [][]sent
	// shapes are, per case, those of outputs that the client sees in another
	// shape than the model gives; nil if there are none.
	shapes []map[string][]int
}

// declared is a tensor in a configuration.
type declared struct {
	name     string
	datatype tensor.Datatype
	dims     []int
	more     string // further fields
}

// sent is an input of a request.
type sent struct {
	Name       string  `json:"name"`
	Datatype   string  `json:"datatype"`
	Shape      []int   `json:"shape"`
	ModelShape []int   `json:"model_shape"` // null is Shape
	Data       []int64 `json:"data"`        // null is anything
}

func (m tested) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "backend: \"onnxruntime\"\nmax_batch_size: %d\n", m.maxBatch)
	for kind, list := range map[string][]declared{"input": m.inputs, "output": m.outputs} {
		for _, d := range list {
			dims := strings.ReplaceAll(strings.Trim(fmt.Sprint(d.dims), "[]"), " ", ", ")
			fmt.Fprintf(&b, "%s { name: %q data_type: %s dims: [%s] %s }\n", kind, d.name, d.datatype.ConfigName(), dims, d.more)
		}
	}
	return b.String() + "instance_group { count: 1 kind: KIND_CPU }\n"
}

// kind is a kind of shape: how a model of it is made and asked.
type kind struct {
	name  string
	ranks []int
	make  func(d tensor.Datatype, rank, maxBatch int) tested
}

func kinds() []kind {
	return []kind{
		{"fixed", []int{1, 2, 3, 5}, fixed},
		{"variable", []int{1, 2, 4}, variable},
		{"dependent", []int{1, 3}, dependent},
		{"scalar", []int{0}, scalar},
	}
}

// table is datatype × kind of shape × batching × rank.
func table() []tested {
	var list []tested
	for _, d := range tensor.Datatypes() {
		for _, k := range kinds() {
			for _, rank := range k.ranks {
				for _, maxBatch := range []int{0, 4} {
					m := k.make(d, rank, maxBatch)
					m.name = strings.ToLower(fmt.Sprintf("%s_%s%d_b%d", d, k.name, rank, maxBatch))
					m.maxBatch = maxBatch
					list = append(list, m)
				}
			}
		}
	}
	return list
}

// fixed has dimensions 2, 3, 4 …
func fixed(d tensor.Datatype, rank, maxBatch int) tested {
	var dims []int
	for i := range rank {
		dims = append(dims, i+2)
	}
	twice := append(slices.Clone(dims[:rank-1]), 2*dims[rank-1])
	return tested{
		model:   onnxmodel.Twice(d, symbols("batch", maxBatch, dims)...),
		inputs:  []declared{{onnxmodel.Input0, d, dims, ""}},
		outputs: []declared{{onnxmodel.Output0, d, twice, ""}},
		cases:   each(maxBatch, dims, func(shape []int) []sent { return []sent{input0(d, shape)} }),
	}
}

// variable takes every dimension in any size, none among them.
func variable(d tensor.Datatype, rank, maxBatch int) tested {
	open, small, large, empty := make([]int, rank), make([]int, rank), make([]int, rank), make([]int, rank)
	for i := range rank {
		open[i], small[i], large[i], empty[i] = -1, 1, 3+i, i
	}
	large[rank-1] = 900 // a mapped buffer for most datatypes
	m := tested{
		model:   onnxmodel.Twice(d, symbols("batch", maxBatch, open)...),
		inputs:  []declared{{onnxmodel.Input0, d, open, ""}},
		outputs: []declared{{onnxmodel.Output0, d, open, ""}},
	}
	for _, dims := range [][]int{small, large, empty} {
		m.cases = append(m.cases, each(maxBatch, dims, func(shape []int) []sent { return []sent{input0(d, shape)} })...)
	}
	return m
}

// dependent gives as many elements as its other input says.
func dependent(d tensor.Datatype, rank, maxBatch int) tested {
	open, dims := make([]int, rank), make([]int, rank)
	for i := range rank {
		open[i], dims[i] = -1, 3+i
	}
	m := tested{
		model:   onnxmodel.Take(d, onnxmodel.Dims(symbols("batch", maxBatch, []int{1})...), symbols("batch", maxBatch, open)...),
		inputs:  []declared{{onnxmodel.Input0, d, open, ""}, {onnxmodel.Input1, tensor.Int64, []int{1}, ""}},
		outputs: []declared{{onnxmodel.Output0, d, open, ""}},
	}
	for n := range 3 {
		m.cases = append(m.cases, each(maxBatch, dims, func(shape []int) []sent {
			count := sent{Name: onnxmodel.Input1, Datatype: "INT64", Shape: []int{1}, Data: []int64{int64(n)}}
			if maxBatch > 0 {
				count.Shape, count.Data = []int{shape[0], 1}, slices.Repeat(count.Data, shape[0])
			}
			return []sent{input0(d, shape), count}
		})...)
	}
	return m
}

// scalar has tensors without dimensions, which configurations write as [1]:
// of the model where it does not batch, of each row where it does.
func scalar(d tensor.Datatype, _, maxBatch int) tested {
	if maxBatch == 0 {
		return tested{
			model:   onnxmodel.Pick(d, "n"),
			inputs:  []declared{{onnxmodel.Input0, d, []int{-1}, ""}, {onnxmodel.Input1, tensor.Int64, []int{1}, ""}},
			outputs: []declared{{onnxmodel.Output0, d, []int{1}, ""}},
			cases: [][]sent{{
				input0(d, []int{5}),
				{Name: onnxmodel.Input1, Datatype: "INT64", Shape: []int{1}, ModelShape: []int{}, Data: []int64{3}},
			}},
			shapes: []map[string][]int{{onnxmodel.Output0: {1}}},
		}
	}
	m := tested{
		model:   onnxmodel.Identity(d, "batch"),
		inputs:  []declared{{onnxmodel.Input0, d, []int{1}, "reshape { shape: [] }"}},
		outputs: []declared{{onnxmodel.Output0, d, []int{1, 1}, "reshape { shape: [] }"}},
	}
	for _, rows := range []int{1, maxBatch} {
		in := input0(d, []int{rows, 1})
		in.ModelShape = []int{rows}
		m.cases = append(m.cases, []sent{in})
		m.shapes = append(m.shapes, map[string][]int{onnxmodel.Output0: {rows, 1, 1}})
	}
	return m
}

func input0(d tensor.Datatype, shape []int) sent {
	return sent{Name: onnxmodel.Input0, Datatype: d.String(), Shape: shape}
}

// each makes a case for a batch of one row and one of the maximum.
func each(maxBatch int, dims []int, request func(shape []int) []sent) [][]sent {
	if maxBatch == 0 {
		return [][]sent{request(dims)}
	}
	var list [][]sent
	for _, rows := range []int{1, maxBatch} {
		list = append(list, request(append([]int{rows}, dims...)))
	}
	return list
}

// symbols makes dimensions of a model: -1 becomes a symbol, and the batch
// dimension comes before them.
func symbols(batch string, maxBatch int, dims []int) []any {
	var list []any
	if maxBatch > 0 {
		list = append(list, batch)
	}
	for i, d := range dims {
		if d < 0 {
			list = append(list, fmt.Sprintf("d%d", i))
			continue
		}
		list = append(list, d)
	}
	return list
}
