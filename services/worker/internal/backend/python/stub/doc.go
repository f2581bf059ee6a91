// Package stub is one stub process of a Python model as its worker sees it: the
// process, the socket to it, the messages, and the memory that both share.
//
// Nothing that comes from a stub is trusted: frames, headers, descriptors, sizes and
// places are checked before they are used, and what is not as docs/design/python.md
// has it is an error that ends the connection. A stub can end itself alone.
package stub
