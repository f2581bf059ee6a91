// Package tensor holds what tensors are made of: datatypes, shapes, and the
// reference-counted memory that their bytes live in.
//
// Bytes are little-endian, row-major and without padding, as on the wire.
// Code that keeps bytes past a call holds a reference on them.
package tensor
