// Package onnxheader reads what an ONNX model file says about itself, without
// its weights: inputs, outputs, operator sets and metadata.
//
// A model file is a protobuf message in which the weights lie between
// everything else. The reader walks the fields and jumps over the bytes of
// those that it does not need, so that a file of many gigabytes costs a few
// reads and memory in proportion to its names. Model files are other people's:
// every length is checked against what encloses it, text and counts are
// bounded, and no input makes the reader recurse.
//
// The package judges only the encoding. Whether a model can run is its
// runtime's to say.
package onnxheader
