// Package proto holds the protobuf definitions that Nereid speaks, and the Go
// code generated from them:
//
//   - inference/v2 is the Open Inference Protocol with Triton's extensions,
//     and the model configuration that config.pbtxt holds. It belongs to the
//     clients that exist: a listing of every name and number, taken from
//     Triton's own client, pins it.
//   - nereid/v1 are the contracts between Nereid's services, and the values
//     that they keep in the state buckets.
//
// Both stop at the edges of a service: transports, bucket readers and writers,
// and the model configuration's parser use the generated types, everything
// behind them uses libs/infer and libs/modelconfig.
//
// `go generate ./...` in this module regenerates the code. It needs nothing
// beyond the Go module cache: protocompile takes the place of protoc, and the
// two plugins are tools of this module. A test fails when the committed code
// is not what the definitions give.
package proto

//go:generate go run ./internal/gen
