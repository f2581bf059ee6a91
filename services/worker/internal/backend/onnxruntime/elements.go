//go:build cgo

package onnxruntime

import "github.com/nereid-serving/nereid/libs/tensor"

// elementOf returns ONNX Runtime's number for a datatype
// (ONNXTensorElementDataType), 0 for none.
func elementOf(d tensor.Datatype) int32 {
	switch d {
	case tensor.FP32:
		return 1
	case tensor.Uint8:
		return 2
	case tensor.Int8:
		return 3
	case tensor.Uint16:
		return 4
	case tensor.Int16:
		return 5
	case tensor.Int32:
		return 6
	case tensor.Int64:
		return 7
	case tensor.Bytes:
		return 8
	case tensor.Bool:
		return 9
	case tensor.FP16:
		return 10
	case tensor.FP64:
		return 11
	case tensor.Uint32:
		return 12
	case tensor.Uint64:
		return 13
	case tensor.BF16:
		return 16
	}
	return 0
}

// datatypeOf is the inverse of elementOf; Invalid for the element types that
// the inference protocol does not have.
func datatypeOf(element int32) tensor.Datatype {
	for _, d := range tensor.Datatypes() {
		if elementOf(d) == element {
			return d
		}
	}
	return tensor.Invalid
}

// onnxTypeName is the name of a value's ONNXType in messages.
func onnxTypeName(t int) string {
	switch t {
	case onnxTensor:
		return "ONNX_TYPE_TENSOR"
	case 2:
		return "ONNX_TYPE_SEQUENCE"
	case 3:
		return "ONNX_TYPE_MAP"
	case 4:
		return "ONNX_TYPE_OPAQUE"
	case 5:
		return "ONNX_TYPE_SPARSETENSOR"
	case 6:
		return "ONNX_TYPE_OPTIONAL"
	}
	return "ONNX_TYPE_UNKNOWN"
}

const onnxTensor = 1
