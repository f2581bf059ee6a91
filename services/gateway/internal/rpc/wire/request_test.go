package wire

import (
	"bytes"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

type inputs = []*inference.ModelInferRequest_InferInputTensor

// addSub is a request as the usual small client sends it.
func addSub() *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: "add_sub", Id: "7",
		Inputs: inputs{
			{Name: "INPUT0", Datatype: "INT32", Shape: []int64{1, 16}},
			{Name: "INPUT1", Datatype: "INT32", Shape: []int64{1, 16}},
		},
		RawInputContents: [][]byte{make([]byte, 64), make([]byte, 64)},
	}
}

func decode(t testing.TB, pool *tensor.Pool, m *inference.ModelInferRequest) *Request {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r := new(Request)
	if err := Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(data)}, pool, nil, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTensorsRefusesDataAsTritonDoes(t *testing.T) {
	fp32 := &inference.InferTensorContents{Fp32Contents: []float32{1}}
	tests := map[string]struct {
		inputs inputs
		raws   [][]byte
		want   string
	}{
		"raw and typed": {
			inputs{{Name: "A", Datatype: "FP32", Contents: fp32}},
			[][]byte{{1, 2, 3, 4}},
			"contents field must not be specified when using raw_input_contents for 'A' for model 'm'",
		},
		"typed beside another's raw": {
			inputs{{Name: "A", Datatype: "FP32"}, {Name: "B", Datatype: "FP32", Contents: fp32}},
			[][]byte{{1, 2, 3, 4}},
			"contents field must not be specified when using raw_input_contents for 'B' for model 'm'",
		},
		"no data": {
			inputs{{Name: "A", Datatype: "FP32"}},
			nil,
			"unable to find data for input tensor 'A' for model 'm' in request.",
		},
		"fewer raws than inputs": {
			inputs{{Name: "A"}, {Name: "B"}},
			[][]byte{{1}},
			"unable to find data for input tensor 'B' for model 'm' in request.",
		},
		"typed contents of another kind": {
			inputs{{Name: "A", Datatype: "INT32", Contents: fp32}},
			nil,
			"unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'FP32', expected datatype 'INT32'",
		},
		"half precision typed": {
			inputs{{Name: "A", Datatype: "FP16", Contents: fp32}},
			nil,
			"unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'FP32', expected datatype 'FP16'",
		},
		"integers for a float": {
			inputs{{Name: "A", Datatype: "BF16", Contents: &inference.InferTensorContents{IntContents: []int32{1}}}},
			nil,
			"unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'INT32', expected datatype 'BF16'",
		},
		"two kinds, the first of which is wrong": {
			inputs{{Name: "A", Datatype: "FP32", Contents: &inference.InferTensorContents{Fp32Contents: []float32{1}, UintContents: []uint32{1}}}},
			nil,
			"unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'UINT32', expected datatype 'FP32'",
		},
		"two kinds": {
			inputs{{Name: "A", Datatype: "FP32", Contents: &inference.InferTensorContents{Fp32Contents: []float32{1}, BytesContents: [][]byte{{1}}}}},
			nil,
			"unexpected explicit tensor data for input tensor 'A' for model 'm', binary data was already supplied.",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := decode(t, tensor.NewPool(0), &inference.ModelInferRequest{ModelName: "m", Inputs: tt.inputs, RawInputContents: tt.raws})
			defer r.Reset()
			_, err := r.Tensors()
			if e := errs.From(err); e == nil || e.Msg != tt.want || e.Reason != errs.TensorDataInvalid || e.Model != "m" {
				t.Errorf("got %#v\nwant %s", e, tt.want)
			}
		})
	}
}

func TestTensorsRefusesContentsThatGrowTooLarge(t *testing.T) {
	r := Request{Model: "m", Inputs: []Input{{Name: "A", hasContents: true, size: maxContents + 1}}}
	if _, err := r.Tensors(); errs.Of(err) != errs.InputTooLarge {
		t.Errorf("got %v, want input_too_large", err)
	}
}

func TestTensorsHandsOverDataOnce(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	m := &inference.ModelInferRequest{Inputs: inputs{{Name: "A"}, {Name: "B"}}, RawInputContents: [][]byte{
		[]byte(strings.Repeat("x", 100_000)), []byte("abc"), []byte(strings.Repeat("unused", 10_000)),
	}}
	r := decode(t, pool, m)
	list, err := r.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	r.Reset()
	request := infer.Request{Inputs: list}
	for i, want := range m.RawInputContents[:2] {
		if got := bytesOf(t, list[i].Data); string(got) != string(want) {
			t.Errorf("input %d has other data", i)
		}
	}
	if !list[0].Data.Mapped() || list[0].Data.Offset != 0 {
		t.Error("the large input does not have a mapped buffer of its own")
	}
	request.Release()
	if s := pool.Stats(); s.InUse != 0 {
		t.Errorf("%d bytes of mapped memory are in use at the end", s.InUse)
	}
}

func TestSmallInputsShareOneAlignedBuffer(t *testing.T) {
	m := &inference.ModelInferRequest{
		Inputs:           inputs{{Name: "A"}, {Name: "B"}, {Name: "C"}, {Name: "D"}},
		RawInputContents: [][]byte{[]byte("a"), []byte("bcd"), nil, []byte("efgh")},
	}
	list, err := decode(t, tensor.NewPool(0), m).Tensors()
	if err != nil {
		t.Fatal(err)
	}
	for i, in := range list {
		if in.Data.Offset%8 != 0 || in.Data.Length != int64(len(m.RawInputContents[i])) {
			t.Errorf("input %d lies at %d, %d bytes", i, in.Data.Offset, in.Data.Length)
		}
	}
	if list[0].Data.Buffer != list[1].Data.Buffer || list[0].Data.Buffer != list[3].Data.Buffer {
		t.Error("small inputs have several buffers")
	}
}

func TestFailedDecodeKeepsNothing(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	data, err := proto.Marshal(&inference.ModelInferRequest{RawInputContents: [][]byte{make([]byte, 50_000), make([]byte, 50_000)}})
	if err != nil {
		t.Fatal(err)
	}
	var r Request
	if err := Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(data[:len(data)-1])}, pool, nil, &r); err == nil {
		t.Fatal("a message that is cut off is accepted")
	}
	if s := pool.Stats(); s.InUse != 0 {
		t.Errorf("%d bytes of mapped memory are in use", s.InUse)
	}
}

func TestDecodeBoundsEntries(t *testing.T) {
	for name, entry := range map[string]string{
		"inputs": "\x2a\x00", "outputs": "\x32\x00", "contents": "\x3a\x00", "parameters": "\x22\x00", "parameters of an input": "\x2a\x02\x22\x00",
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(strings.Repeat(entry, maxEntries))
			var r Request
			err := Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(data)}, tensor.NewPool(0), nil, &r)
			if fits := !strings.Contains(name, " of "); (err == nil) != fits {
				t.Errorf("%d entries: %v", maxEntries, err)
			}
			data = append(data, entry...)
			if err := Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(data)}, tensor.NewPool(0), nil, &r); errs.Of(err) != errs.InputTooLarge {
				t.Errorf("one more: %v", err)
			}
		})
	}
}

// A request that is submitted lives on after the call, so its parts are
// allocated: names, dimensions and the list of tensors.
func TestDecodeAllocations(t *testing.T) {
	if invariant.Enabled {
		t.Skip("allocations differ when assertions are compiled in")
	}
	data, err := proto.Marshal(addSub())
	if err != nil {
		t.Fatal(err)
	}
	pool := tensor.NewPool(1 << 20)
	buffers := mem.BufferSlice{mem.SliceBuffer(data)}
	var r Request
	if n := testing.AllocsPerRun(1000, func() { decodeAndRelease(t, buffers, pool, &r) }); n > 3 {
		t.Errorf("%.1f allocations to decode a small request, want at most 3", n)
	}
}

func decodeAndRelease(t testing.TB, buffers mem.BufferSlice, pool *tensor.Pool, r *Request) {
	if err := Decode(t.Context(), buffers, pool, nil, r); err != nil {
		t.Fatal(err)
	}
	list, err := r.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i].Data.Release()
	}
}

func BenchmarkDecode(b *testing.B) {
	large := addSub()
	large.RawInputContents = [][]byte{make([]byte, 300<<10), make([]byte, 300<<10)}
	typed := addSub()
	typed.RawInputContents = nil
	for _, in := range typed.Inputs {
		in.Contents = &inference.InferTensorContents{IntContents: make([]int32, 16)}
	}
	for name, m := range map[string]*inference.ModelInferRequest{"small": addSub(), "600KiB": large, "typed": typed} {
		b.Run(name, func(b *testing.B) {
			data, err := proto.Marshal(m)
			if err != nil {
				b.Fatal(err)
			}
			var buffers mem.BufferSlice // as DATA frames bring them
			for rest := data; len(rest) > 0; rest = rest[min(16<<10, len(rest)):] {
				buffers = append(buffers, mem.SliceBuffer(rest[:min(16<<10, len(rest))]))
			}
			pool := tensor.NewPool(4 << 20)
			var r Request
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				decodeAndRelease(b, buffers, pool, &r)
			}
		})
	}
}

// BenchmarkDecodeGenerated is what BenchmarkDecode is held against: the
// generated type, which still leaves the tensors to be taken out.
func BenchmarkDecodeGenerated(b *testing.B) {
	data, err := proto.Marshal(addSub())
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var m inference.ModelInferRequest
		if err := proto.Unmarshal(data, &m); err != nil {
			b.Fatal(err)
		}
	}
}

// Whatever a message unfolds to, no more memory is taken than was charged.
func TestMemoryIsChargedBeforeItIsTaken(t *testing.T) {
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	const n, limit = 8 << 20, 1 << 20
	for name, message := range map[string][]byte{
		"dimensions":   field(5, field(3, make([]byte, n))),
		"varints":      field(5, slices.Concat(field(2, []byte("INT64")), field(5, field(3, make([]byte, n))))),
		"empty inputs": bytes.Repeat(field(5, nil), n/2),
		"outputs":      bytes.Repeat(field(6, nil), n/2),
		"parameters":   bytes.Repeat(field(4, nil), n/2),
		"raw contents": bytes.Repeat(field(7, nil), n/2),
		"raw content":  field(7, make([]byte, n)),
		"an id":        field(3, make([]byte, n)),
		"ids":          bytes.Repeat(field(3, make([]byte, 1<<10)), n/(1<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			budget := memory.NewBudget(limit)
			var account memory.Account
			account.Open(budget)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			pool := tensor.NewPool(0)
			var r Request
			err := Decode(t.Context(), mem.BufferSlice{mem.SliceBuffer(message)}, pool, &account, &r)
			runtime.ReadMemStats(&after)
			if reason := errs.Of(err); reason != errs.MemoryFull && reason != errs.InputTooLarge {
				t.Errorf("the error is %v", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 3*limit { // lists grow by copying
				t.Errorf("%d bytes were allocated under a budget of %d", took, limit)
			}
			if r.Reset(); pool.Stats().InUse != 0 {
				t.Errorf("%d bytes are in use", pool.Stats().InUse)
			}
			if account.Close(); budget.Reserved() != 0 {
				t.Errorf("%d bytes are charged afterwards", budget.Reserved())
			}
		})
	}
}

// An input in client shared memory takes no raw contents and needs none.
func TestSharedInputsHaveNoData(t *testing.T) {
	pool := tensor.NewPool(0)
	m := addSub()
	m.RawInputContents = m.RawInputContents[:1]
	r := decode(t, pool, m)
	defer r.Reset()
	r.Inputs[0].Shared = true
	tensors, err := r.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	if tensors[0].Data.Length != 0 || tensors[1].Data.Length != 64 {
		t.Errorf("the inputs have %d and %d bytes", tensors[0].Data.Length, tensors[1].Data.Length)
	}
	for i := range tensors {
		tensors[i].Data.Release()
	}
}
