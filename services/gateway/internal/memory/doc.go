// Package memory bounds the bytes that clients make the gateway hold. A [Budget] is the bound for the process;
// an [Account] is one call's part of it. All code that turns a client's bytes into memory charges the call's
// account first: the transports, the decoders, the responses and their encoders.
package memory
