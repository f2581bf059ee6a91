// Package stub is one stub process of a Python model, seen from its worker: the
// process, the socket to it, the messages, and the shared memory.
//
// Nothing from a stub is trusted: frames, headers, descriptors, sizes and places are
// checked before they are used, and a violation of docs/design/python.md is an error
// that ends the connection. A stub can only end itself.
package stub
