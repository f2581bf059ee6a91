// Package codec encodes and decodes the messages between services: the values of
// libs/infer on one side, the messages of nereid/v1 on the other. Messages of
// every request are encoded and decoded by hand, the others by the generated
// types.
//
// # Tensor bytes
//
// A [Writer] passes large tensors to gRPC without a copy and copies small ones
// into the envelope, which is cheaper than tracking them. A [Reader] copies the
// bytes of each tensor once, from the network's buffers into memory of a
// [tensor.Pool]. References to those buffers would save that copy only for
// tensors of a few kilobytes, where it is cheaper than the reference, and would
// hold up to 16 KiB for each.
//
// # Times
//
// Times travel as durations: the time left until a deadline, or the time that
// something took. The receiver converts them to its own clock, and clamps those
// that no clock can represent.
//
// # Agreement with the generated types
//
// A reader accepts and rejects the same bytes as proto.Unmarshal, except for
// messages that no peer of this system sends: tensors whose bytes do not fill
// their shape, requests of negative size, messages with several members, too many
// entries. The error then has the reason peer_malformed, and the stream ends.
package codec
