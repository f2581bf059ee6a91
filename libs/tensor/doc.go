// Package tensor holds what tensors are made of: datatypes, shapes, and the
// reference-counted memory that their bytes live in.
//
// Bytes are little-endian, row-major and without padding, as on the wire.
// Whoever holds bytes past its call holds a reference; tests count that all
// are given back.
package tensor
