// Package onnxmodel writes small ONNX models for tests, as bytes of the ONNX
// format and without any ONNX tool, and finds the ONNX Runtime library that
// tests run them with.
package onnxmodel
