// Package link is one long-lived gRPC stream between two services: how it is
// dialed and served, how messages are collected into envelopes, how it detects
// that the peer is lost, and how it ends.
//
// Sending never blocks: messages are added to an envelope, which a goroutine of
// the stream writes as soon as the previous one is written. So messages that are
// ready together travel together. The credits of the streams bound how much may
// wait in an envelope.
//
// Received messages are passed to one function, in order, on the stream's
// reading goroutine; it must not block.
package link
