// Package tensor has the parts of tensors: datatypes, shapes, and the
// reference-counted memory of their bytes.
//
// Bytes are little-endian, row-major and without padding, as on the wire.
// Code that retains bytes beyond a call holds a reference on them.
package tensor
