// Package transport bounds what a gRPC client makes the server hold before a call is served and after it has
// ended. gRPC for Go buffers incomplete messages and responses that the client does not read, and cannot bound
// them for all connections together.
//
// A [Connection] sits between gRPC and the network, above TLS. It parses the headers of the HTTP/2 frames that
// pass, but never their compressed header fields, and so knows what each call has received and sent. What a
// call has received counts in a [memory.Budget] until the codec has decoded it; a response counts until it is
// written. A call whose client makes no progress is reset. If the budget is nearly full, the calls that hold
// the most are reset.
package transport
