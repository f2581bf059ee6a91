// Package onnxruntime runs ONNX models with ONNX Runtime.
//
// The library is opened at run time: without it the worker still runs other
// backends. The Go binding (github.com/yalue/onnxruntime_go) opens the
// library, owns the process's environment and creates sessions with their
// options. A C shim over the same library does what the binding cannot: run a
// batch over memory that we own, for every datatype, with one cgo call and
// without a copy of the outputs; read a session's inputs and outputs without
// building a second session; and report error codes.
//
// # Memory
//
// The instances of a model version share one session: it is safe for concurrent
// runs, and its weights are loaded once. An instance owns one mapped buffer, its
// arena, in which it gathers small or scattered inputs; a single request whose
// input is mapped memory runs over that memory. C gets only memory outside the Go
// heap. An output with a known shape is written to a pooled buffer; the runtime
// allocates any other. Both are passed on as row slices of one buffer, with a
// reference for each response. Outputs below [tensor.MappedThreshold] are copied
// once into a small buffer instead.
package onnxruntime
