// Package inference is the Open Inference Protocol over gRPC with Triton's
// extensions, and the model configuration. The code is generated; names and
// numbers are those of Triton's clients and never change (see testdata).
package inference
