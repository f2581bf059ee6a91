// Package onnxheader reads the metadata of an ONNX model file without its
// weights: inputs, outputs, operator sets and properties.
//
// A model file is a protobuf message in which the weights lie between other
// fields. The reader walks the fields and skips the bytes of those that it does
// not need, so that a file of many gigabytes costs a few reads and memory in
// proportion to its names. Model files come from other people: every length is
// checked against the enclosing message, text and counts are bounded, and no
// input makes the reader recurse.
//
// The package judges only the encoding. Whether a model can run is for its
// runtime to decide.
package onnxheader
