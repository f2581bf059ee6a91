// Package device is CUDA as the worker uses it beside ONNX Runtime: how its libraries are
// found and loaded, what it tells of a GPU, and the memory of clients' processes that is
// mapped on one.
package device
