//go:build cgo

package onnxruntime_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// masked is a model whose rows do not depend on what MASK leaves out: SAME is
// INPUT0, SUM the sum of what MASK lets pass, of each row.
func masked() onnxmodel.Model {
	const d = tensor.Int32
	value := func(name string, dims ...any) onnxmodel.Value {
		return onnxmodel.Value{Name: name, Type: d, Dims: onnxmodel.Dims(dims...)}
	}
	return onnxmodel.Model{Graph: onnxmodel.Graph{
		Name:         "masked",
		Inputs:       []onnxmodel.Value{value("INPUT0", "batch", "rows", "columns"), value("MASK", "batch", "rows", "columns")},
		Outputs:      []onnxmodel.Value{value("SAME", "batch", "rows", "columns"), value("SUM", "batch", 1, 1)},
		Initializers: []onnxmodel.Tensor{{Name: "axes", Type: tensor.Int64, Shape: tensor.Shape{2}, Raw: []byte(pack([]int64{1, 2}))}},
		Nodes: []onnxmodel.Node{
			{Op: "Identity", Inputs: []string{"INPUT0"}, Outputs: []string{"SAME"}},
			{Op: "Mul", Inputs: []string{"INPUT0", "MASK"}, Outputs: []string{"passed"}},
			{Op: "ReduceSum", Inputs: []string{"passed", "axes"}, Outputs: []string{"SUM"}},
		},
	}}
}

func maskedConfig(p *modelconfig.Padding) *modelconfig.Config {
	const d = tensor.Int32
	c := config(64, ios(io("INPUT0", d, -1, -1), io("MASK", d, -1, -1)), ios(io("SAME", d, -1, -1), io("SUM", d, 1, 1)))
	c.Padding = p
	return c
}

// padding pads both dimensions, INPUT0 with a value that MASK must hide.
func padding(buckets ...int64) *modelconfig.Padding {
	return &modelconfig.Padding{
		Buckets: buckets,
		Inputs: []modelconfig.PaddedInput{
			{Name: "INPUT0", Dims: []int{0, 1}, Value: []byte(pack(int32(-7)))},
			{Name: "MASK", Dims: []int{0, 1}, Value: []byte(pack(int32(0)))},
		},
		Outputs: []modelconfig.TrimmedOutput{
			{Name: "SAME", Dim: 0, Input: "INPUT0", InputDim: 0},
			{Name: "SAME", Dim: 1, Input: "INPUT0", InputDim: 1},
		},
	}
}

// drawn are inputs of random numbers, of which MASK lets all pass.
func drawn(r *rand.Rand, batch, rows, columns int64) []value {
	data, mask := make([]int32, batch*rows*columns), make([]int32, batch*rows*columns)
	for i := range data {
		data[i], mask[i] = r.Int32N(1000)-500, 1
	}
	shape := tensor.Shape{batch, rows, columns}
	return []value{{"INPUT0", tensor.Int32, shape, pack(data)}, {"MASK", tensor.Int32, shape, pack(mask)}}
}

// compareWithAlone runs requests of the inputs as one padded batch, and each alone
// and without padding, compares, and returns how often the model ran padded.
func compareWithAlone(t *testing.T, padded, alone backend.Instance, inputs [][]value) int {
	t.Helper()
	requests := make([]*infer.Request, len(inputs))
	for i, list := range inputs {
		requests[i] = request(list[0].Shape[0], list...)
	}
	got := run(t, padded, requests...)
	for i, list := range inputs {
		want := outputs(t, run(t, alone, request(list[0].Shape[0], list...)).response(0))
		if d := cmp.Diff(want, outputs(t, got.response(i))); d != "" {
			t.Fatalf("request %d of shape %v: %s", i, list[0].Shape, d)
		}
	}
	return got.executed
}

// Padded batches give what each request gets alone and without padding, and take
// as many runs as there are shapes after it.
func TestPaddedBatchesGiveWhatRequestsAloneGive(t *testing.T) {
	b, _ := open(t)
	alone := instance(t, b, masked(), maskedConfig(nil))
	for seed, p := range []*modelconfig.Padding{padding(), padding(4), padding(1, 3, 8), padding(16)} {
		in := instance(t, b, masked(), maskedConfig(p))
		r := rand.New(rand.NewPCG(uint64(seed), 0))
		for range 100 {
			inputs := make([][]value, 1+r.IntN(8))
			shapes := make(map[[2]int64]bool)
			for i := range inputs {
				rows, columns := r.Int64N(18), r.Int64N(6)
				inputs[i] = drawn(r, 1+r.Int64N(3), rows, columns)
				shapes[[2]int64{p.Size("INPUT0", 0, rows), p.Size("INPUT0", 1, columns)}] = true
			}
			if n := compareWithAlone(t, in, alone, inputs); n != len(shapes) {
				t.Errorf("seed %d: the model ran %d times for %d shapes", seed, n, len(shapes))
			}
		}
	}
}

// Outputs that are large enough for memory of their own are cut as others are.
func TestLargePaddedTensors(t *testing.T) {
	b, _ := open(t)
	alone, in := instance(t, b, masked(), maskedConfig(nil)), instance(t, b, masked(), maskedConfig(padding(256)))
	r := rand.New(rand.NewPCG(1, 1))
	for _, shapes := range [][][2]int64{{{250, 200}, {256, 256}}, {{150, 256}}, {{256, 256}}, {{257, 1}}} {
		var inputs [][]value
		for _, s := range shapes {
			inputs = append(inputs, drawn(r, 1, s[0], s[1]))
		}
		if n := compareWithAlone(t, in, alone, inputs); n != 1 {
			t.Errorf("shapes %v: the model ran %d times, want once", shapes, n)
		}
	}
}

// A request that could be run where it lies is copied if it has to be padded.
func TestMappedInputsArePaddedInACopy(t *testing.T) {
	b, pool := open(t)
	in := instance(t, b, masked(), maskedConfig(padding(256)))
	for _, rows := range []int64{100, 256} {
		list := drawn(rand.New(rand.NewPCG(1, 1)), 1, rows, 256)
		r := &infer.Request{BatchSize: 1}
		for _, v := range list {
			r.Inputs = append(r.Inputs, mapped(t, pool, v.Name, v.Type, v.Shape, v.Data))
		}
		got := outputs(t, run(t, in, r).response(0))[0]
		if d := cmp.Diff(value{"SAME", tensor.Int32, list[0].Shape, list[0].Data}, got); d != "" {
			t.Errorf("%d rows differ", rows)
		}
	}
}

// What is not named in padding.outputs is as long as what was padded, and a
// batch input tells the lengths before.
func TestPaddedInputsKeepTheirShapesForBatchInputs(t *testing.T) {
	const d = tensor.Int32
	m := onnxmodel.Identity(d, "batch", "n")
	m.Graph.Inputs = append(m.Graph.Inputs, onnxmodel.Value{Name: "LENGTHS", Type: d, Dims: onnxmodel.Dims("batch", 1)})
	m.Graph.Outputs = append(m.Graph.Outputs, onnxmodel.Value{Name: "LENGTH", Type: d, Dims: onnxmodel.Dims("batch", 1)})
	m.Graph.Nodes = append(m.Graph.Nodes, onnxmodel.Node{Op: "Identity", Inputs: []string{"LENGTHS"}, Outputs: []string{"LENGTH"}})
	c := config(8, ios(io("INPUT0", d, -1)), ios(io("OUTPUT0", d, -1), io("LENGTH", d, 1)))
	c.BatchInputs = []modelconfig.BatchInput{{Kind: modelconfig.BatchItemShape, Targets: []string{"LENGTHS"}, Source: "INPUT0", Datatype: d}}
	c.Padding = &modelconfig.Padding{Buckets: []int64{4}, Inputs: []modelconfig.PaddedInput{{Name: "INPUT0", Dims: []int{0}, Value: []byte(pack(int32(9)))}}}
	b, _ := open(t)
	got := run(t, instance(t, b, m, c),
		request(1, value{"INPUT0", d, tensor.Shape{1, 3}, pack([]int32{1, 2, 3})}),
		request(2, value{"INPUT0", d, tensor.Shape{2, 1}, pack([]int32{4, 5})}))
	for i, want := range [][]value{
		{{"OUTPUT0", d, tensor.Shape{1, 4}, pack([]int32{1, 2, 3, 9})}, {"LENGTH", d, tensor.Shape{1, 1}, pack([]int32{3})}},
		{{"OUTPUT0", d, tensor.Shape{2, 4}, pack([]int32{4, 9, 9, 9, 5, 9, 9, 9})}, {"LENGTH", d, tensor.Shape{2, 1}, pack([]int32{1, 1})}},
	} {
		if d := cmp.Diff(want, outputs(t, got.response(i))); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
}

func TestPaddingThatDoesNotFitFails(t *testing.T) {
	b, _ := open(t)
	wrong := maskedConfig(padding(8))
	wrong.Outputs[1].Dims = tensor.Shape{-1, 1}
	wrong.Padding.Outputs = append(wrong.Padding.Outputs, modelconfig.TrimmedOutput{Name: "SUM", Dim: 0, Input: "INPUT0", InputDim: 1})
	const large = 1 << 24
	for want, c := range map[string]*modelconfig.Config{
		"output 'SUM' of model 'm' has 1 in dimension 0, not 8, to which input 'INPUT0' was padded; correct padding.outputs":                      wrong,
		"input 'INPUT0' of model 'm' is too large when it is padded to [1,16777216,16777216]; set lower padding.buckets, or fewer padding.inputs": maskedConfig(padding(large)),
	} {
		inputs := drawn(rand.New(rand.NewPCG(1, 1)), 1, 2, 2)
		got := run(t, instance(t, b, masked(), c), request(1, inputs...))
		if d := cmp.Diff(want, failed(t, got.response(0)).Msg); d != "" {
			t.Error(d)
		}
	}
}
