// Package codec turns what services tell each other into bytes and back: the
// values of libs/infer on one side, the messages of nereid/v1 on the other.
// What travels with every request is written and read by hand, the rest by the
// generated types.
//
// # Tensor bytes
//
// A [Writer] lends large tensors to gRPC where they lie and copies small ones
// into the envelope, which costs less than to keep account of them. A [Reader]
// copies the bytes of each tensor once, from the network's buffers into memory
// of a [tensor.Pool]: keeping references on those buffers instead would save
// that copy only for tensors of a few kilobytes, where it is cheaper than the
// reference, and hold up to 16 KiB for each.
//
// # Times
//
// Times cross as durations: what is left of a deadline, how long something has
// taken. Whoever receives them rebuilds times of its own clock, and takes those
// that no clock can hold for the latest or earliest that it can.
//
// # Agreement with the generated types
//
// A reader accepts and rejects what proto.Unmarshal does, but for what no peer
// of this system says: tensors whose bytes do not fill their shape, requests of
// negative size, messages with several members, more entries than any needs.
// The error then has the reason peer_malformed, and the stream ends.
package codec
