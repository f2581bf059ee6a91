// Package link is one long-lived gRPC stream between two services: how it is
// dialed and served, how messages are put together into envelopes, how it
// notices that the peer is gone, and how it ends.
//
// Sending never blocks: messages are put into an envelope, which a goroutine of
// the stream writes as soon as the one before it is written. So what is ready
// together travels together. How much may wait there is bounded by what the
// messages are about: see the credits of the streams.
//
// What is received is handed to one function, in order, on the stream's
// reading goroutine; it must not block.
package link
