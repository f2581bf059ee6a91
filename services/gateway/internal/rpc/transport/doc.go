// Package transport bounds what a gRPC client makes the server hold before a call is
// served and after it has ended. gRPC for Go buffers messages that are not complete and
// responses that the client does not read, and offers no bound on them for all
// connections together.
//
// A [Connection] stands between gRPC and the network, above TLS. It reads the headers of
// the HTTP/2 frames that pass, never their compressed header fields, and so knows what
// each call has received and sent. What a call has received counts in a [memory.Budget]
// until the codec has decoded it; a response counts until it is written. A call whose
// client makes no progress is reset, and where the budget is nearly full, so are the
// calls that hold most.
package transport
