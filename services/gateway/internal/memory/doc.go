// Package memory bounds the bytes that clients make the gateway hold. A [Budget] is
// the bound of the process; an [Account] is one call's part of it. Whoever turns a
// client's bytes into memory charges the call's account first: the transport, the
// decoders, the responses and what encodes them.
package memory
