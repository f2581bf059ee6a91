// Package onnxmodel writes small ONNX models for tests, directly in the ONNX
// format without any ONNX tool, and locates the ONNX Runtime library that tests
// run them with.
package onnxmodel
