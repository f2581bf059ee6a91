// Package onnxruntime runs ONNX models with ONNX Runtime.
//
// The library is opened at run time: without it the worker still runs other
// backends. The Go binding (github.com/yalue/onnxruntime_go) opens the
// library, owns the process's environment and makes sessions with their
// options. What it cannot do is done by a C shim over the same library: run a
// batch over memory that we own, for every datatype, with one cgo call and
// without a copy of the outputs; read a session's inputs and outputs without
// building a second session; and report error codes.
//
// # Memory
//
// One session per model version is shared by its instances: it is safe for
// concurrent runs, and shared weights are loaded once. An instance owns one
// mapped buffer, its arena, where small or scattered inputs are gathered; a
// single request whose input is mapped memory is run over that memory. Only
// memory outside the Go heap is given to C. An output whose shape is known
// beforehand is written to a pooled buffer, any other is allocated by the
// runtime; both are handed on as row slices of one buffer with a reference
// for each response. Outputs below [tensor.MappedThreshold] are copied once
// into a small buffer instead.
package onnxruntime
