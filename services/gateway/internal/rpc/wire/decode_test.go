package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// view is a request in a form that both the generated type and ours convert
// to, so that they can be compared.
type view struct {
	Model, Version, ID string
	Parameters         map[string]any
	Inputs             []inputView
	Outputs            []outputView
	Raws               []string
}

type inputView struct {
	Name, Datatype string
	Shape          []int64
	Parameters     map[string]any
	HasContents    bool
	Contents       string // "error" if they are of the wrong kind
}

type outputView struct {
	Name       string
	Parameters map[string]any
}

func viewOf(t testing.TB, r *Request) view {
	v := view{Model: r.Model, Version: r.Version, ID: r.ID, Parameters: parametersOf(r.Parameters)}
	for i := range r.Inputs {
		in := &r.Inputs[i]
		contents := string(bytesOf(t, in.contents))
		if in.hasContents && (in.several || in.given != in.Datatype) {
			contents = "error"
		}
		v.Inputs = append(v.Inputs, inputView{
			in.Name, in.Datatype.String(), append([]int64(nil), in.Shape...), parametersOf(in.Parameters), in.hasContents, contents,
		})
	}
	for _, out := range r.Outputs {
		v.Outputs = append(v.Outputs, outputView{out.Name, parametersOf(out.Parameters)})
	}
	for _, raw := range r.raws {
		v.Raws = append(v.Raws, string(bytesOf(t, raw)))
	}
	return v
}

func bytesOf(t testing.TB, r tensor.Ref) []byte {
	t.Helper()
	b, err := r.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parametersOf(list []infer.Parameter) map[string]any {
	m := map[string]any{}
	for _, p := range list {
		m[p.Key] = equalable(p.Value)
	}
	return m
}

// equalable makes NaN equal to itself.
func equalable(v any) any {
	if f, ok := v.(float64); ok {
		return [1]uint64{math.Float64bits(f)}
	}
	return v
}

func wantView(m *inference.ModelInferRequest) view {
	v := view{Model: m.ModelName, Version: m.ModelVersion, ID: m.Id, Parameters: wantParameters(m.Parameters)}
	for _, in := range m.Inputs {
		d, _ := tensor.ParseDatatype(in.Datatype)
		v.Inputs = append(v.Inputs, inputView{
			in.Name, d.String(), append([]int64(nil), in.Shape...), wantParameters(in.Parameters), in.Contents != nil, wantContents(in.Contents, d),
		})
	}
	for _, out := range m.Outputs {
		v.Outputs = append(v.Outputs, outputView{out.Name, wantParameters(out.Parameters)})
	}
	for _, raw := range m.RawInputContents {
		v.Raws = append(v.Raws, string(raw))
	}
	return v
}

func wantParameters(m map[string]*inference.InferParameter) map[string]any {
	out := map[string]any{}
	for k, p := range m {
		switch c := p.ParameterChoice.(type) {
		case *inference.InferParameter_BoolParam:
			out[k] = c.BoolParam
		case *inference.InferParameter_Int64Param:
			out[k] = c.Int64Param
		case *inference.InferParameter_StringParam:
			out[k] = c.StringParam
		case *inference.InferParameter_DoubleParam:
			out[k] = equalable(c.DoubleParam)
		case *inference.InferParameter_Uint64Param:
			out[k] = c.Uint64Param
		default:
			out[k] = nil
		}
	}
	return out
}

// wantContents writes typed contents out the plain way.
func wantContents(c *inference.InferTensorContents, d tensor.Datatype) string {
	var b bytes.Buffer
	write := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	kinds := map[tensor.Datatype]int{}
	count := func(n int, d tensor.Datatype) {
		if n > 0 {
			kinds[d] = n
		}
	}
	signed, unsigned := tensor.Int32, tensor.Uint32
	if d == tensor.Int8 || d == tensor.Int16 {
		signed = d
	}
	if d == tensor.Uint8 || d == tensor.Uint16 {
		unsigned = d
	}
	count(len(c.GetBoolContents()), tensor.Bool)
	count(len(c.GetIntContents()), signed)
	count(len(c.GetInt64Contents()), tensor.Int64)
	count(len(c.GetUintContents()), unsigned)
	count(len(c.GetUint64Contents()), tensor.Uint64)
	count(len(c.GetFp32Contents()), tensor.FP32)
	count(len(c.GetFp64Contents()), tensor.FP64)
	count(len(c.GetBytesContents()), tensor.Bytes)
	for kind := range kinds {
		if kind != d {
			return "error"
		}
	}
	write(c.GetBoolContents())
	for _, v := range c.GetIntContents() {
		switch d {
		case tensor.Int8:
			write(int8(v))
		case tensor.Int16:
			write(int16(v))
		default:
			write(v)
		}
	}
	write(c.GetInt64Contents())
	for _, v := range c.GetUintContents() {
		switch d {
		case tensor.Uint8:
			write(uint8(v))
		case tensor.Uint16:
			write(uint16(v))
		default:
			write(v)
		}
	}
	write(c.GetUint64Contents())
	write(c.GetFp32Contents())
	write(c.GetFp64Contents())
	for _, s := range c.GetBytesContents() {
		write(uint32(len(s)))
		b.Write(s)
	}
	return b.String()
}

// split cuts a message into buffers as a network might.
func split(data []byte, seed uint64) mem.BufferSlice {
	if seed == 0 {
		return mem.BufferSlice{mem.SliceBuffer(data)}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var s mem.BufferSlice
	for len(data) > 0 {
		n := min(random.IntN(12), len(data))
		s = append(s, mem.SliceBuffer(data[:n]))
		data = data[n:]
	}
	return s
}

func TestDecodeAgreesWithTheGeneratedType(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	var r Request // used again and again, as the server does
	rapid.Check(t, func(t *rapid.T) {
		m := request().Draw(t, "request")
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		buffers := split(data, rapid.Uint64Range(0, 3).Draw(t, "cuts"))
		if err := Decode(t.Context(), buffers, pool, nil, &r); err != nil {
			t.Fatalf("refused: %v", err)
		}
		clear(data) // the request must not lie in the message
		if diff := cmp.Diff(wantView(m), viewOf(&fatal{t: t}, &r)); diff != "" {
			t.Fatalf("decoded differently (-generated +ours):\n%s", diff)
		}
	})
	r.Reset()
	if s := pool.Stats(); s.InUse != 0 {
		t.Errorf("%d bytes of mapped memory are in use after Reset", s.InUse)
	}
}

// fatal lets a rapid check stand in where a test is wanted.
type fatal struct {
	testing.TB
	t *rapid.T
}

func (f *fatal) Helper()           {}
func (f *fatal) Fatal(args ...any) { f.t.Fatal(args...) }

func request() *rapid.Generator[*inference.ModelInferRequest] {
	return rapid.Custom(func(t *rapid.T) *inference.ModelInferRequest {
		m := &inference.ModelInferRequest{
			ModelName: rapid.String().Draw(t, "model"), ModelVersion: rapid.StringN(0, 3, -1).Draw(t, "version"), Id: rapid.String().Draw(t, "id"),
			Parameters: parameters().Draw(t, "parameters"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "inputs") {
			in := &inference.ModelInferRequest_InferInputTensor{
				Name:       rapid.String().Draw(t, "name"),
				Datatype:   rapid.SampledFrom([]string{"FP32", "INT8", "INT16", "UINT8", "UINT16", "BOOL", "BYTES", "INT64", "UINT64", "FP64", "FP16", "odd"}).Draw(t, "datatype"),
				Shape:      rapid.SliceOf(rapid.Int64()).Draw(t, "shape"),
				Parameters: parameters().Draw(t, "input parameters"),
			}
			if rapid.Bool().Draw(t, "typed") {
				in.Contents = typed(in.Datatype).Draw(t, "contents")
			}
			m.Inputs = append(m.Inputs, in)
		}
		for range rapid.IntRange(0, 2).Draw(t, "outputs") {
			m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{
				Name: rapid.String().Draw(t, "output"), Parameters: parameters().Draw(t, "output parameters"),
			})
		}
		for range rapid.IntRange(0, 3).Draw(t, "raws") {
			size := rapid.SampledFrom([]int{0, 1, 7, 64, 1000, tensor.MappedThreshold - 1, tensor.MappedThreshold, 40000}).Draw(t, "size")
			m.RawInputContents = append(m.RawInputContents, bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, size))
		}
		return m
	})
}

func parameters() *rapid.Generator[map[string]*inference.InferParameter] {
	return rapid.MapOfN(rapid.String(), rapid.Custom(func(t *rapid.T) *inference.InferParameter {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 1:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: rapid.Bool().Draw(t, "v")}}
		case 2:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: rapid.Int64().Draw(t, "v")}}
		case 3:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: rapid.String().Draw(t, "v")}}
		case 4:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: rapid.Float64().Draw(t, "v")}}
		case 5:
			return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: rapid.Uint64().Draw(t, "v")}}
		}
		return &inference.InferParameter{}
	}), 0, 3)
}

// typed draws contents that mostly fit the datatype.
func typed(datatype string) *rapid.Generator[*inference.InferTensorContents] {
	return rapid.Custom(func(t *rapid.T) *inference.InferTensorContents {
		c := &inference.InferTensorContents{}
		if rapid.IntRange(0, 9).Draw(t, "stray") == 0 {
			c.Fp64Contents = rapid.SliceOf(rapid.Float64()).Draw(t, "stray values")
		}
		switch datatype {
		case "BOOL":
			c.BoolContents = rapid.SliceOf(rapid.Bool()).Draw(t, "v")
		case "INT8", "INT16":
			c.IntContents = rapid.SliceOf(rapid.Int32()).Draw(t, "v")
		case "INT64":
			c.Int64Contents = rapid.SliceOf(rapid.Int64()).Draw(t, "v")
		case "UINT8", "UINT16":
			c.UintContents = rapid.SliceOf(rapid.Uint32()).Draw(t, "v")
		case "UINT64":
			c.Uint64Contents = rapid.SliceOf(rapid.Uint64()).Draw(t, "v")
		case "FP64":
			c.Fp64Contents = rapid.SliceOf(rapid.Float64()).Draw(t, "v")
		case "BYTES":
			c.BytesContents = rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "v")
		default:
			c.Fp32Contents = rapid.SliceOf(rapid.Float32()).Draw(t, "v")
		}
		return c
	})
}

func FuzzDecode(f *testing.F) {
	for _, m := range []*inference.ModelInferRequest{{}, addSub(), {Inputs: []*inference.ModelInferRequest_InferInputTensor{{
		Name: "A", Datatype: "INT8", Shape: []int64{2}, Contents: &inference.InferTensorContents{IntContents: []int32{1, -1}},
	}}}} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, uint64(0))
		f.Add(data, uint64(1))
	}
	// Unpacked dimensions, a field of another wire type, an unknown group,
	// contents before their datatype and in two parts.
	f.Add([]byte("\x2a\x04\x18\x02\x18\x03\x0d\x00\x00\x00\x00\xa3\x06\x08\x01\xa4\x06"), uint64(2))
	f.Add([]byte("\x2a\x11\x2a\x02\x10\x05\x2a\x04\x12\x02\x06\x07\x12\x05INT16"), uint64(3))
	f.Add([]byte("\x80\x80\x80\x80\x10\x00"), uint64(0))                 // a field number beyond the largest
	f.Add([]byte("\x2a\x07\x2a\x05\x32\x03\x00\x00\x00"), uint64(0))     // three bytes of a float
	f.Add([]byte("\x2a\x0b\x12\x04BOOL\x2a\x03\x0a\x01\x02"), uint64(0)) // a bool that is 2
	pool := tensor.NewPool(1 << 20)
	f.Fuzz(func(t *testing.T, data []byte, cuts uint64) {
		var want inference.ModelInferRequest
		oracle := proto.Unmarshal(data, &want)
		var r Request
		err := Decode(t.Context(), split(data, cuts), pool, nil, &r)
		if errs.Of(err) == errs.InputTooLarge {
			return
		}
		if (err == nil) != (oracle == nil) {
			t.Fatalf("we say %v, protobuf says %v", err, oracle)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(wantView(&want), viewOf(t, &r)); diff != "" {
			t.Fatalf("decoded differently (-generated +ours):\n%s", diff)
		}
		r.Reset()
	})
}
