package onnxheader

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Header is what a model says about itself.
type Header struct {
	// IRVersion is the version of the file format.
	IRVersion int64
	// Producer names the program that wrote the file, with its version.
	Producer string
	// Opsets are the operator sets that the model needs.
	Opsets []Opset
	// Metadata are the producer's notes; the last of a key wins.
	Metadata map[string]string
	// Inputs are all inputs of the graph in the file's order. Those with
	// [Value.HasDefault] need not be given.
	Inputs []Value
	// Outputs are the outputs of the graph in the file's order.
	Outputs []Value
	// External are the files, relative to the model's directory, that hold
	// weights, each once, in the order in which they are met.
	External []string
}

// Opset is a version of a set of operators.
type Opset struct {
	// Domain is empty for the standard operators.
	Domain  string
	Version int64
}

// Kind is what a value is made of.
type Kind uint8

// The kinds of values. Only tensors can be given over the inference protocol.
const (
	KindUnknown Kind = iota
	KindTensor
	KindSequence
	KindMap
	KindSparseTensor
	KindOptional
	KindOpaque
)

// String is the name that ONNX Runtime gives the kind.
func (k Kind) String() string {
	names := [...]string{
		"ONNX_TYPE_UNKNOWN", "ONNX_TYPE_TENSOR", "ONNX_TYPE_SEQUENCE", "ONNX_TYPE_MAP",
		"ONNX_TYPE_SPARSETENSOR", "ONNX_TYPE_OPTIONAL", "ONNX_TYPE_OPAQUE",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return names[KindUnknown]
}

// Value is an input or output of the graph.
type Value struct {
	Name string
	Kind Kind
	// Element is ONNX's number for the type of a tensor's elements.
	Element int32
	// HasShape tells a scalar, which has no dimensions, from a tensor of
	// unknown rank.
	HasShape bool
	Dims     []Dim
	// HasDefault says of an input that the model has a value for it.
	HasDefault bool
}

// Dim is one dimension of a value.
type Dim struct {
	// Size is -1 where the model leaves it open.
	Size int64
	// Symbol is the name of an open size, which may be empty.
	Symbol string
}

// Datatype gives the type of the elements; [tensor.Invalid] if the inference
// protocol does not have it.
func (v Value) Datatype() tensor.Datatype {
	datatypes := elements()
	if v.Kind != KindTensor || v.Element < 0 || int(v.Element) >= len(datatypes) {
		return tensor.Invalid
	}
	return datatypes[v.Element]
}

// elements are the datatypes by the numbers that ONNX gives them.
func elements() []tensor.Datatype {
	return []tensor.Datatype{
		1: tensor.FP32, 2: tensor.Uint8, 3: tensor.Int8, 4: tensor.Uint16, 5: tensor.Int16, 6: tensor.Int32,
		7: tensor.Int64, 8: tensor.Bytes, 9: tensor.Bool, 10: tensor.FP16, 11: tensor.FP64, 12: tensor.Uint32,
		13: tensor.Uint64, 16: tensor.BF16,
	}
}

// ElementOf is the number that ONNX gives a datatype; -1 if it has none.
func ElementOf(d tensor.Datatype) int32 {
	return int32(slices.Index(elements(), d))
}

// Shape gives the dimensions, open ones as -1. A scalar's is empty; a tensor
// of unknown rank has none, which is nil.
func (v Value) Shape() tensor.Shape {
	if !v.HasShape {
		return nil
	}
	shape := make(tensor.Shape, len(v.Dims))
	for i, d := range v.Dims {
		shape[i] = d.Size
	}
	return shape
}

// ErrMalformed is behind the errors of [Read] that are the content's, not
// those of reading it.
var ErrMalformed = errors.New("not an ONNX model")

// Read reads the header of the model in the first size bytes of r.
func Read(r io.ReaderAt, size int64) (*Header, error) {
	p := parser{scanner: scanner{from: r, end: size}, header: new(Header), external: make(map[string]bool)}
	if err := p.model(); err != nil {
		if what := stranger(r); errors.Is(err, ErrMalformed) && what != "" {
			return nil, fmt.Errorf("%w but %s", ErrMalformed, what)
		}
		return nil, fmt.Errorf("reading an ONNX model at byte %d of %d: %w", p.pos, size, err)
	}
	if !p.graphs {
		return nil, fmt.Errorf("%w: it has no graph", ErrMalformed)
	}
	p.markDefaults()
	return p.header, nil
}

// stranger recognizes what is often found in a model file's place, with what
// to do about it; empty if it is none of that.
func stranger(r io.ReaderAt) string {
	start := make([]byte, 64)
	n, _ := r.ReadAt(start, 0) // what cannot be read is none
	text := strings.ToLower(strings.TrimSpace(string(start[:n])))
	switch {
	case strings.HasPrefix(text, "version https://git-lfs"):
		return "a pointer of Git LFS, which stands for it until  git lfs pull  fetches it"
	case strings.HasPrefix(text, "<!doctype html") || strings.HasPrefix(text, "<html"):
		return "a web page, such as a download that failed leaves"
	case strings.HasPrefix(text, "pk\x03\x04"):
		return "a zip archive: unpack it, or export the model if it is PyTorch's"
	}
	return ""
}
