// Package rpc is the gateway's gRPC front end: the Open Inference Protocol
// with Triton's extensions (inference.GRPCInferenceService) and the standard
// health service.
//
// Inference messages bypass the generated types: a codec decodes and encodes them with package wire. All other
// messages go through protobuf as usual. Errors become statuses in one place, errors.go.
package rpc
