package onnxheader_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

func read(t *testing.T, model []byte) *onnxheader.Header {
	t.Helper()
	h, err := onnxheader.Read(bytes.NewReader(model), int64(len(model)))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestReadTellsInputsAndOutputs(t *testing.T) {
	model := onnxmodel.Model{Graph: onnxmodel.Graph{
		Name: "g",
		Inputs: []onnxmodel.Value{
			{Name: "image", Type: tensor.FP32, Dims: onnxmodel.Dims("batch", 3, "", 224)},
			{Name: "text", Type: tensor.Bytes},
			{Name: "any", Type: tensor.BF16, NoShape: true},
			{Name: "list", Type: tensor.Int64, Sequence: true},
			{Name: "bias", Type: tensor.FP16, Dims: onnxmodel.Dims(1)},
		},
		Outputs:      []onnxmodel.Value{{Name: "score", Type: tensor.FP64, Dims: onnxmodel.Dims(1000)}},
		Initializers: []onnxmodel.Tensor{{Name: "bias", Type: tensor.FP16, Shape: tensor.Shape{1}, Raw: []byte{0, 1}}},
	}}
	const tensors = onnxheader.KindTensor
	want := &onnxheader.Header{
		IRVersion: 8, Producer: "nereid-test", Opsets: []onnxheader.Opset{{Version: 17}},
		Inputs: []onnxheader.Value{
			{Name: "image", Kind: tensors, Element: 1, HasShape: true, Dims: []onnxheader.Dim{
				{Size: -1, Symbol: "batch"}, {Size: 3}, {Size: 0}, {Size: 224},
			}},
			{Name: "text", Kind: tensors, Element: 8, HasShape: true},
			{Name: "any", Kind: tensors, Element: 16},
			{Name: "list", Kind: onnxheader.KindSequence},
			{Name: "bias", Kind: tensors, Element: 10, HasShape: true, Dims: []onnxheader.Dim{{Size: 1}}, HasDefault: true},
		},
		Outputs: []onnxheader.Value{{Name: "score", Kind: tensors, Element: 11, HasShape: true, Dims: []onnxheader.Dim{{Size: 1000}}}},
	}
	got := read(t, model.Bytes())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	if got.Inputs[1].Shape() == nil || got.Inputs[2].Shape() != nil {
		t.Error("a scalar and a tensor of unknown rank are not told apart")
	}
}

func TestDatatypesAreThoseOfTheProtocol(t *testing.T) {
	for d := tensor.Bool; d.Valid(); d++ {
		h := read(t, onnxmodel.Identity(d, 1).Bytes())
		if got := h.Inputs[0].Datatype(); got != d {
			t.Errorf("%s is read as %s", d, got)
		}
	}
	for _, v := range []onnxheader.Value{
		{Kind: onnxheader.KindTensor, Element: 14},
		{Kind: onnxheader.KindTensor, Element: 99},
		{Kind: onnxheader.KindTensor, Element: -1},
		{Kind: onnxheader.KindSequence, Element: 1},
	} {
		if v.Datatype() != tensor.Invalid {
			t.Errorf("%+v has datatype %s", v, v.Datatype())
		}
	}
}

// TestOpenDimensions has the forms in which a size is left open, and a
// negative one, which runtimes take as open too.
func TestOpenDimensions(t *testing.T) {
	var shape []byte
	for _, dim := range [][]byte{
		nil,
		text(nil, 2, "n"),
		number(nil, 1, 1<<64-1),
		number(nil, 1, 1<<64-9),
		text(number(nil, 1, 4), 2, "last wins"),
		number(text(nil, 2, "last wins"), 1, 4),
	} {
		shape = text(shape, 1, string(dim))
	}
	tensorType := text(number(nil, 1, 1), 2, string(shape))
	value := text(text(nil, 1, "x"), 2, string(text(nil, 1, string(tensorType))))
	h := read(t, text(nil, 7, string(text(nil, 11, string(value)))))
	want := []onnxheader.Dim{{Size: -1}, {Size: -1, Symbol: "n"}, {Size: -1}, {Size: -1}, {Size: -1, Symbol: "last wins"}, {Size: 4}}
	if diff := cmp.Diff(want, h.Inputs[0].Dims); diff != "" {
		t.Errorf("dimensions (-want +got):\n%s", diff)
	}
}

func TestReadTellsNotesAndFilesOfWeights(t *testing.T) {
	note := func(key, value string) string { return string(text(text(nil, 1, key), 2, value)) }
	weight := text(text(text(nil, 8, "w"), 13, note("location", "w.bin")), 13, note("offset", "4096"))
	graph := text(text(text(nil, 5, string(weight)), 5, string(weight)), 15, string(text(nil, 1, string(text(nil, 8, "x")))))
	graph = text(graph, 11, string(text(nil, 1, "x")))
	b := text(text(nil, 2, "exporter"), 3, "2.1")
	b = text(text(text(b, 14, note("author", "a")), 14, note("author", "b")), 7, string(graph))
	b = text(b, 8, string(number(text(nil, 1, "ai.onnx.ml"), 2, 3)))
	got := read(t, b)
	want := &onnxheader.Header{
		Producer: "exporter 2.1", Opsets: []onnxheader.Opset{{Domain: "ai.onnx.ml", Version: 3}},
		Metadata: map[string]string{"author": "b"}, External: []string{"w.bin"},
		Inputs: []onnxheader.Value{{Name: "x", HasDefault: true}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
}

// sparse is a file of which only a few bytes exist: reading the others fails.
type sparse struct {
	size  int64
	parts map[int64][]byte
}

func (s sparse) ReadAt(b []byte, at int64) (int, error) {
	if at >= s.size {
		return 0, io.EOF
	}
	n := copy(b, bytes.Repeat([]byte{0xff}, int(min(int64(len(b)), s.size-at))))
	for start, part := range s.parts {
		for i, c := range part {
			if pos := start + int64(i) - at; pos >= 0 && pos < int64(n) {
				b[pos] = c
			}
		}
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func TestWeightsAreNotRead(t *testing.T) {
	const weights = 1 << 40
	value := text(nil, 12, string(text(nil, 1, "y")))
	head := protowire.AppendVarint(protowire.AppendTag(nil, 9, protowire.BytesType), weights)
	tensorBytes := int64(len(head)) + weights
	inner := append(protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.BytesType), uint64(tensorBytes)), head...)
	graphBytes := int64(len(inner)) + weights + int64(len(value))
	start := append(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.BytesType), uint64(graphBytes)), inner...)
	after := int64(len(start)) + weights
	file := sparse{size: after + int64(len(value)), parts: map[int64][]byte{0: start, after: value}}
	h, err := onnxheader.Read(file, file.size)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Outputs) != 1 || h.Outputs[0].Name != "y" {
		t.Errorf("outputs = %v", h.Outputs)
	}
}

func TestDamagedFilesAreMalformed(t *testing.T) {
	whole := onnxmodel.AddSub(tensor.FP32, "n", 16).Bytes()
	for n := range whole {
		if _, err := onnxheader.Read(bytes.NewReader(whole[:n]), int64(n)); err != nil && !errors.Is(err, onnxheader.ErrMalformed) {
			t.Errorf("cut off at %d: %v", n, err)
		}
	}
	tests := []struct {
		name  string
		bytes []byte
	}{
		{"empty", nil},
		{"text", []byte("<html>")},
		{"no graph", text(nil, 2, "x")},
		{"group", []byte{7<<3 | 3}},
		{"field 0", []byte{0, 0}},
		{"number without end", bytes.Repeat([]byte{0xff}, 20)},
		{"length beyond the message", text(nil, 7, string([]byte{11<<3 | 2, 100}))},
		{"length beyond all files", append([]byte{7<<3 | 2}, protowire.AppendVarint(nil, 1<<63)...)},
		{"graph that is a number", number(nil, 7, 1)},
		{"name that is a number", text(nil, 7, string(text(nil, 11, string(number(nil, 1, 1)))))},
		{"fixed field beyond the message", text(nil, 7, string([]byte{1<<3 | 5, 0}))},
		{"name of megabytes", text(nil, 2, string(make([]byte, 2<<20)))},
		{"too many operator sets", bytes.Repeat(text(nil, 8, ""), 1<<16+1)},
		{"too many inputs", text(nil, 7, string(bytes.Repeat(text(nil, 11, ""), 1<<16+1)))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if h, err := onnxheader.Read(bytes.NewReader(tt.bytes), int64(len(tt.bytes))); !errors.Is(err, onnxheader.ErrMalformed) {
				t.Errorf("Read = %+v, %v; want %v", h, err, onnxheader.ErrMalformed)
			}
		})
	}
}

func TestFileThatShrinksIsAnError(t *testing.T) {
	model := onnxmodel.AddSub(tensor.FP32, 1).Bytes()
	if _, err := onnxheader.Read(bytes.NewReader(model[:40]), int64(len(model))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error = %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(onnxmodel.AddSub(tensor.FP32, "n", 16).Bytes())
	f.Add(onnxmodel.Default(1, 4).Bytes())
	f.Add(onnxmodel.Count().Bytes())
	f.Add(text(nil, 7, string(bytes.Repeat(text(nil, 11, ""), 100))))
	f.Fuzz(func(t *testing.T, model []byte) {
		h, err := onnxheader.Read(bytes.NewReader(model), int64(len(model)))
		if err != nil {
			return
		}
		for _, v := range append(h.Inputs, h.Outputs...) {
			for _, d := range v.Shape() {
				if d < -1 {
					t.Errorf("'%s' has dimension %d", v.Name, d)
				}
			}
		}
	})
}

func BenchmarkRead(b *testing.B) {
	m := onnxmodel.AddSub(tensor.FP32, "n", 16)
	m.Graph.Initializers = []onnxmodel.Tensor{{Name: "w", Type: tensor.FP32, Shape: tensor.Shape{1 << 20}, Raw: make([]byte, 4<<20)}}
	model := m.Bytes()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := onnxheader.Read(bytes.NewReader(model), int64(len(model))); err != nil {
			b.Fatal(err)
		}
	}
}

func text(b []byte, number protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func number(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
