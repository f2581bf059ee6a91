// Package rpc is the gateway's gRPC front end: the Open Inference Protocol
// with Triton's extensions (inference.GRPCInferenceService) and the standard
// health service.
//
// Inference messages pass by the generated types: a codec reads and writes
// them with package wire. Everything else goes through protobuf as usual.
// Errors become statuses in one place, errors.go.
package rpc
