// Package wire reads and writes the inference messages of the gRPC protocol
// by hand, without the generated types: ModelInferRequest is decoded straight
// into tensors, ModelInferResponse is encoded straight from them.
//
// # Memory
//
// gRPC delivers a message as a chain of network buffers, which are its own
// again after decoding. Bytes of tensors are therefore copied exactly once:
// a large tensor into a buffer of its own from the pool, which lies outside
// the Go heap and page-aligned, so that a worker may hand it to its runtime
// without gathering; small tensors together into one small buffer. Keeping
// references on the network buffers instead would save the copy only for
// tensors that arrive in one piece, at most 16 KiB, at the price of holding
// memory that no worker can use in place.
//
// # Agreement with proto.Unmarshal
//
// The decoder accepts and rejects what proto.Unmarshal does: any order of
// fields, packed and unpacked repetition, unknown fields, merging of
// repeated submessages. Only a bound on the number of inputs and the like is
// its own. A message that is well formed but says something the
// protocol forbids is decoded; [Request.Tensors] refuses it.
package wire
