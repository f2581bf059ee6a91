//go:build cgo

package onnxruntime_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// pattern makes n elements of distinct bytes. They are numbers of the
// datatype only by chance, which Identity does not mind; BOOL keeps to 0
// and 1.
func pattern(d tensor.Datatype, n int64) string {
	if d == tensor.Bytes {
		var data []byte
		for i := range n {
			data = tensor.AppendBytes(data, strings.Repeat("ä\x00", int(i%4))+strconv.FormatInt(i, 10))
		}
		return string(data)
	}
	data := make([]byte, n*int64(d.Size()))
	for i := range data {
		data[i] = byte(i*7 + i/256)
		if d == tensor.Bool {
			data[i] = byte(i % 2)
		}
	}
	return string(data)
}

func TestEveryDatatypeInEveryKindOfShape(t *testing.T) {
	b, _ := open(t)
	kinds := []struct {
		name     string
		model    []any // the model's dimensions
		maxBatch int64
		dims     tensor.Shape // in the configuration
		shape    tensor.Shape // of the request
	}{
		{"fixed", []any{3, 2}, 0, tensor.Shape{3, 2}, tensor.Shape{3, 2}},
		{"variable", []any{"n", 2}, 0, tensor.Shape{-1, 2}, tensor.Shape{5, 2}},
		{"batch of fixed rows", []any{"b", 4}, 8, tensor.Shape{4}, tensor.Shape{3, 4}},
		{"batch of variable rows", []any{"b", "n"}, 8, tensor.Shape{-1}, tensor.Shape{2, 7}},
		{"scalar", nil, 0, tensor.Shape{1}, tensor.Shape{1}},
		{"empty", []any{"n"}, 0, tensor.Shape{-1}, tensor.Shape{0}},
		{"batch without rows", []any{"b", 4}, 8, tensor.Shape{4}, tensor.Shape{0, 4}},
		{"batch of empty rows", []any{"b", "n"}, 8, tensor.Shape{-1}, tensor.Shape{3, 0}},
		{"fixed and large", []any{20000}, 0, tensor.Shape{20000}, tensor.Shape{20000}},
		{"variable and large", []any{"n"}, 0, tensor.Shape{-1}, tensor.Shape{20001}},
	}
	for _, k := range kinds {
		for _, d := range tensor.Datatypes() {
			t.Run(k.name+"/"+d.String(), func(t *testing.T) {
				in := instance(t, b, onnxmodel.Identity(d, k.model...), config(k.maxBatch,
					ios(io("INPUT0", d, k.dims...)), ios(io("OUTPUT0", d, k.dims...))))
				n, _ := k.shape.Elements()
				rows := int64(1)
				if k.maxBatch > 0 {
					rows = k.shape[0]
				}
				v := value{"INPUT0", d, k.shape, pattern(d, n)}
				// Twice, since the second run finds the first one's state.
				for range 2 {
					got := outputs(t, run(t, in, request(rows, v)).response(0))
					want := []value{{"OUTPUT0", d, k.shape, v.Data}}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Fatal(diff)
					}
				}
			})
		}
	}
}

func addSub(t testing.TB, b *onnxruntime.Backend, maxBatch, n int64) backend.Instance {
	return instance(t, b, onnxmodel.AddSub(tensor.Int32, "batch", int(n)), config(maxBatch,
		ios(io("INPUT0", tensor.Int32, n), io("INPUT1", tensor.Int32, n)),
		ios(io("OUTPUT0", tensor.Int32, n), io("OUTPUT1", tensor.Int32, n))))
}

// addSubRequest asks for rows × [n] of a+i and b.
func addSubRequest(rows, n int64, a, b int32) *infer.Request {
	x, y := make([]int32, rows*n), make([]int32, rows*n)
	for i := range x {
		x[i], y[i] = a+int32(i), b
	}
	shape := tensor.Shape{rows, n}
	return request(rows, value{"INPUT0", tensor.Int32, shape, pack(x)}, value{"INPUT1", tensor.Int32, shape, pack(y)})
}

func addSubAnswer(rows, n int64, a, b int32) []value {
	sum, difference := make([]int32, rows*n), make([]int32, rows*n)
	for i := range sum {
		sum[i], difference[i] = a+int32(i)+b, a+int32(i)-b
	}
	shape := tensor.Shape{rows, n}
	return []value{{"OUTPUT0", tensor.Int32, shape, pack(sum)}, {"OUTPUT1", tensor.Int32, shape, pack(difference)}}
}

func TestRequestsShareOneRun(t *testing.T) {
	b, _ := open(t)
	for _, n := range []int64{2, 5000} { // outputs on the Go heap, and mapped
		in := addSub(t, b, 8, n)
		got := run(t, in, addSubRequest(1, n, 0, 1), addSubRequest(0, n, 0, 0), addSubRequest(3, n, 100, 7), addSubRequest(2, n, -5, 5))
		if got.executed != 1 {
			t.Errorf("the model ran %d times, want once", got.executed)
		}
		want := [][]value{addSubAnswer(1, n, 0, 1), addSubAnswer(0, n, 0, 0), addSubAnswer(3, n, 100, 7), addSubAnswer(2, n, -5, 5)}
		for i := range want {
			if d := cmp.Diff(want[i], outputs(t, got.response(i))); d != "" {
				t.Errorf("request %d of rows of %d: %s", i, n, d)
			}
		}
	}
}

func TestOutputsOfABatchAreSlicesOfOneBuffer(t *testing.T) {
	b, _ := open(t)
	in := addSub(t, b, 8, 5000)
	got := run(t, in, addSubRequest(1, 5000, 0, 0), addSubRequest(2, 5000, 0, 0))
	x, y := got.response(0).Outputs[0].Data, got.response(1).Outputs[0].Data
	if x.Buffer != y.Buffer || !x.Mapped() || x.Offset != 0 || y.Offset != 20000 || y.Length != 40000 {
		t.Errorf("outputs lie at %+v and %+v, want consecutive rows of one mapped buffer", x, y)
	}
	got.response(0).Release()
	if data, err := y.Bytes(); err != nil || len(data) != 40000 {
		t.Errorf("after the other's release: %d bytes, %v", len(data), err)
	}
	got.response(1).Release()
}

func TestStringsAreBatchedByElements(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.Identity(tensor.Bytes, "b", 2), config(8,
		ios(io("INPUT0", tensor.Bytes, 2)), ios(io("OUTPUT0", tensor.Bytes, 2))))
	parts := []value{
		{"INPUT0", tensor.Bytes, tensor.Shape{1, 2}, text("", "a\x00b")},
		{"INPUT0", tensor.Bytes, tensor.Shape{2, 2}, text("c", strings.Repeat("d", 20000), "", "e")},
		{"INPUT0", tensor.Bytes, tensor.Shape{1, 2}, text("ü", "f")},
	}
	got := run(t, in, request(1, parts[0]), request(2, parts[1]), request(1, parts[2]))
	if got.executed != 1 {
		t.Errorf("the model ran %d times, want once", got.executed)
	}
	for i, p := range parts {
		p.Name = "OUTPUT0"
		if d := cmp.Diff([]value{p}, outputs(t, got.response(i))); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
}

func TestRequestsThatCannotShareARunAreRunApart(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.Relu(tensor.FP32, "b", "n"), config(8,
		ios(io("INPUT0", tensor.FP32, -1)), ios(io("OUTPUT0", tensor.FP32, -1))))
	two := value{"INPUT0", tensor.FP32, tensor.Shape{1, 2}, pack([]float32{1, -2})}
	three := value{"INPUT0", tensor.FP32, tensor.Shape{1, 3}, pack([]float32{-1, 2, 3})}
	got := run(t, in, request(1, two), request(1, three), request(1, two))
	if got.executed != 2 {
		t.Errorf("the model ran %d times, want twice: the two of one shape share a run", got.executed)
	}
	for i, want := range [][]float32{{1, 0}, {0, 2, 3}, {1, 0}} {
		o := outputs(t, got.response(i))
		if d := cmp.Diff(pack(want), o[0].Data); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
}

func TestModelWithoutBatchingRunsRequestsApart(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.Relu(tensor.Int32, 2), config(0,
		ios(io("INPUT0", tensor.Int32, 2)), ios(io("OUTPUT0", tensor.Int32, 2))))
	got := run(t, in,
		request(1, value{"INPUT0", tensor.Int32, tensor.Shape{2}, pack([]int32{-1, 1})}),
		request(1, value{"INPUT0", tensor.Int32, tensor.Shape{2}, pack([]int32{2, -2})}))
	if got.executed != 2 {
		t.Errorf("the model ran %d times, want twice", got.executed)
	}
	for i, want := range [][]int32{{0, 1}, {2, 0}} {
		if d := cmp.Diff(pack(want), outputs(t, got.response(i))[0].Data); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
}

func TestOnlyRequestedOutputsAreAnswered(t *testing.T) {
	b, _ := open(t)
	in := addSub(t, b, 8, 2)
	one, all := addSubRequest(1, 2, 1, 2), addSubRequest(1, 2, 3, 4)
	one.Outputs = []infer.Output{{Name: "OUTPUT1"}}
	got := run(t, in, one, all)
	if d := cmp.Diff(addSubAnswer(1, 2, 1, 2)[1:], outputs(t, got.response(0))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(addSubAnswer(1, 2, 3, 4), outputs(t, got.response(1))); d != "" {
		t.Error(d)
	}
	alone := addSubRequest(1, 2, 1, 2)
	alone.Outputs = one.Outputs
	if d := cmp.Diff(addSubAnswer(1, 2, 1, 2)[1:], outputs(t, run(t, in, alone).response(0))); d != "" {
		t.Error(d)
	}
}

func TestShapesThatDependOnTheData(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.NonZero(tensor.Int32, "n"), config(0,
		ios(io("INPUT0", tensor.Int32, -1)), ios(io("OUTPUT0", tensor.Int64, 1, -1))))
	for _, n := range []int64{0, 3, 9000} { // nothing, copied, handed on
		data, want := make([]int32, 2*n+1), make([]int64, n)
		for i := range n {
			data[2*i+1] = 1
			want[i] = 2*i + 1
		}
		r := run(t, in, request(1, value{"INPUT0", tensor.Int32, tensor.Shape{2*n + 1}, pack(data)})).response(0)
		if mapped := r.Outputs[0].Data.Mapped(); mapped != (n == 9000) {
			t.Errorf("%d indexes: mapped is %t", n, mapped)
		}
		if d := cmp.Diff([]value{{"OUTPUT0", tensor.Int64, tensor.Shape{1, n}, pack(want)}}, outputs(t, r)); d != "" {
			t.Error(d)
		}
	}
}

func TestTwoByteFloats(t *testing.T) {
	b, _ := open(t)
	for d, want := range map[tensor.Datatype][]uint16{
		tensor.FP16: {0x3e00, 0xc000}, // 1.5, -2
		tensor.BF16: {0x3fc0, 0xc000},
	} {
		in := instance(t, b, onnxmodel.Cast(tensor.FP32, d, 2), config(0,
			ios(io("INPUT0", tensor.FP32, 2)), ios(io("OUTPUT0", d, 2))))
		got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{2}, pack([]float32{1.5, -2})})).response(0))
		if diff := cmp.Diff([]value{{"OUTPUT0", d, tensor.Shape{2}, pack(want)}}, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestOutputOfUnknownRank(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, shapeless(), config(0,
		ios(io("INPUT0", tensor.FP32, -1), io("INPUT1", tensor.Int64, -1)), ios(io("OUTPUT0", tensor.FP32, -1, 2))))
	data := pack([]float32{1, 2, 3, 4, 5, 6})
	got := outputs(t, run(t, in, request(1,
		value{"INPUT0", tensor.FP32, tensor.Shape{6}, data},
		value{"INPUT1", tensor.Int64, tensor.Shape{2}, pack([]int64{-1, 2})})).response(0))
	if d := cmp.Diff([]value{{"OUTPUT0", tensor.FP32, tensor.Shape{3, 2}, data}}, got); d != "" {
		t.Error(d)
	}
}

// shapeless gives INPUT0 in the shape INPUT1, so that not even the runtime
// knows the rank of OUTPUT0 beforehand.
func shapeless() onnxmodel.Model {
	m := onnxmodel.Relu(tensor.FP32, "n")
	m.Graph.Outputs[0].NoShape = true
	m.Graph.Inputs = append(m.Graph.Inputs, onnxmodel.Value{Name: "INPUT1", Type: tensor.Int64, Dims: onnxmodel.Dims("k")})
	m.Graph.Nodes[0] = onnxmodel.Node{Op: "Reshape", Inputs: []string{"INPUT0", "INPUT1"}, Outputs: []string{"OUTPUT0"}}
	return m
}

func TestInputPassedThroughIsCopied(t *testing.T) {
	b, pool := open(t)
	in := instance(t, b, onnxmodel.PassThrough(tensor.Uint8, "n"), config(0,
		ios(io("X", tensor.Uint8, -1)), ios(io("X", tensor.Uint8, -1))))
	data := pattern(tensor.Uint8, 50000)
	r := &infer.Request{BatchSize: 1, Inputs: []infer.Tensor{mapped(t, pool, "X", tensor.Uint8, tensor.Shape{50000}, data)}}
	source := r.Inputs[0].Data.Buffer
	got := run(t, in, r).response(0)
	if got.Outputs[0].Data.Buffer == source {
		t.Error("the output is the request's own buffer, which has been released")
	}
	// The memory of the input is in other hands now.
	again, err := pool.Get(50000)
	if err != nil {
		t.Fatal(err)
	}
	clear(again.Bytes())
	if d := cmp.Diff(data, outputs(t, got)[0].Data); d != "" {
		t.Error("the output lies in the input's memory")
	}
	again.Release()
}

// mapped makes a tensor in mapped memory, at an offset that is a multiple of
// its element size.
func mapped(t testing.TB, pool *tensor.Pool, name string, d tensor.Datatype, shape tensor.Shape, data string) infer.Tensor {
	return mappedAt(t, pool, 64, name, d, shape, data)
}

func mappedAt(t testing.TB, pool *tensor.Pool, offset int, name string, d tensor.Datatype, shape tensor.Shape, data string) infer.Tensor {
	t.Helper()
	b, err := pool.Get(max(tensor.MappedThreshold, offset+len(data)))
	if err != nil {
		t.Fatal(err)
	}
	copy(b.Bytes()[offset:], data)
	return infer.Tensor{Name: name, Datatype: d, Shape: shape, Data: tensor.InBuffer(b, int64(offset), int64(len(data)))}
}

func TestMappedInputsOfOneRequestAndOfSeveral(t *testing.T) {
	b, pool := open(t)
	in := addSub(t, b, 8, 5000)
	for _, offset := range []int{64, 61} { // aligned, and not
		make1 := func(a, b int32) *infer.Request {
			r := addSubRequest(1, 5000, a, b)
			for i, v := range r.Inputs {
				data, _ := v.Data.Bytes()
				r.Inputs[i] = mappedAt(t, pool, offset, v.Name, v.Datatype, v.Shape, string(data))
			}
			return r
		}
		alone := outputs(t, run(t, in, make1(3, 4)).response(0))
		if d := cmp.Diff(addSubAnswer(1, 5000, 3, 4), alone); d != "" {
			t.Error(d)
		}
		both := run(t, in, make1(1, 2), make1(5, 6))
		if d := cmp.Diff(addSubAnswer(1, 5000, 1, 2), outputs(t, both.response(0))); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(addSubAnswer(1, 5000, 5, 6), outputs(t, both.response(1))); d != "" {
			t.Error(d)
		}
	}
}

func TestReshape(t *testing.T) {
	b, _ := open(t)
	reshaped := func(name string, dims, shape tensor.Shape) modelconfig.IO {
		return modelconfig.IO{Name: name, Datatype: tensor.FP32, Dims: dims, Reshape: shape, HasReshape: true}
	}
	tests := []struct {
		name          string
		model         onnxmodel.Model
		config        *modelconfig.Config
		input, output tensor.Shape
	}{
		{
			"to a row without dimensions", onnxmodel.Relu(tensor.FP32, "b"),
			config(4, ios(reshaped("INPUT0", tensor.Shape{1}, nil)), ios(reshaped("OUTPUT0", tensor.Shape{1, 1}, nil))),
			tensor.Shape{2, 1},
			tensor.Shape{2, 1, 1},
		},
		{
			"split and merged", onnxmodel.Relu(tensor.FP32, "b", 2, 3),
			config(4, ios(reshaped("INPUT0", tensor.Shape{6}, tensor.Shape{2, 3})), ios(reshaped("OUTPUT0", tensor.Shape{3, 2}, tensor.Shape{2, 3}))),
			tensor.Shape{1, 6},
			tensor.Shape{1, 3, 2},
		},
		{
			"with variable dimensions", onnxmodel.Relu(tensor.FP32, "x", 1, "y"),
			config(0, ios(reshaped("INPUT0", tensor.Shape{-1, -1}, tensor.Shape{-1, 1, -1})), ios(reshaped("OUTPUT0", tensor.Shape{1, -1, -1}, tensor.Shape{-1, 1, -1}))),
			tensor.Shape{2, 3},
			tensor.Shape{1, 2, 3},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := instance(t, b, tt.model, tt.config)
			n, _ := tt.input.Elements()
			data := make([]float32, n)
			for i := range data {
				data[i] = float32(i)
			}
			rows := int64(1)
			if tt.config.Batches() {
				rows = tt.input[0]
			}
			got := outputs(t, run(t, in, request(rows, value{"INPUT0", tensor.FP32, tt.input, pack(data)})).response(0))
			if d := cmp.Diff([]value{{"OUTPUT0", tensor.FP32, tt.output, pack(data)}}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestScalarOutputHasTheConfiguredDimensions(t *testing.T) {
	b, _ := open(t)
	in := instance(t, b, onnxmodel.Sum(tensor.FP32, "n"), config(0,
		ios(io("INPUT0", tensor.FP32, -1)), ios(io("OUTPUT0", tensor.FP32, 1, 1))))
	got := outputs(t, run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{3}, pack([]float32{1, 2, 4})})).response(0))
	if d := cmp.Diff([]value{{"OUTPUT0", tensor.FP32, tensor.Shape{1, 1}, pack([]float32{7})}}, got); d != "" {
		t.Error(d)
	}
}

func TestOptionalInput(t *testing.T) {
	b, _ := open(t)
	optional := io("INPUT1", tensor.FP32, 2)
	optional.Optional = true
	in := instance(t, b, onnxmodel.Default(10, 2), config(0,
		ios(io("INPUT0", tensor.FP32, 2), optional), ios(io("OUTPUT0", tensor.FP32, 2))))
	x := value{"INPUT0", tensor.FP32, tensor.Shape{2}, pack([]float32{1, 2})}
	y := value{"INPUT1", tensor.FP32, tensor.Shape{2}, pack([]float32{3, 4})}
	for _, tt := range []struct {
		r    *infer.Request
		want []float32
	}{
		{request(1, x), []float32{11, 12}},
		{request(1, y, x), []float32{4, 6}},
		{request(1, x), []float32{11, 12}},
	} {
		got := outputs(t, run(t, in, tt.r).response(0))
		if d := cmp.Diff(pack(tt.want), got[0].Data); d != "" {
			t.Error(d)
		}
	}
}

func TestRaggedInputsAreLaidEndToEnd(t *testing.T) {
	b, _ := open(t)
	ragged := io("INPUT0", tensor.Int32, -1)
	ragged.Ragged = true
	in := instance(t, b, onnxmodel.Relu(tensor.Int32, "n"), config(8, ios(ragged),
		ios(modelconfig.IO{Name: "OUTPUT0", Datatype: tensor.Int32, Dims: tensor.Shape{1}, HasReshape: true})))
	// Three rows in all, of which the requests have one element each, so that
	// the model's output can be split by rows.
	got := run(t, in,
		request(1, value{"INPUT0", tensor.Int32, tensor.Shape{1, 1}, pack([]int32{5})}),
		request(2, value{"INPUT0", tensor.Int32, tensor.Shape{2, 1}, pack([]int32{-6, 7})}))
	if got.executed != 1 {
		t.Errorf("the model ran %d times, want once", got.executed)
	}
	if d := cmp.Diff(pack([]int32{5}), outputs(t, got.response(0))[0].Data); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(pack([]int32{0, 7}), outputs(t, got.response(1))[0].Data); d != "" {
		t.Error(d)
	}
}
