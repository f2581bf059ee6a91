// Package jsoninfer decodes and encodes the JSON of the inference protocol: the envelope of a request with the
// numbers of its tensors, and the envelope of a response.
//
// Tensors make up most of such a document, so they are parsed directly into the bytes that the model will see,
// and printed directly from them, without an intermediate form. The accepted syntax follows Triton's reader:
// NaN, Infinity and Inf are numbers, arrays nest in any way up to [MaxDepth], strings are bytes that need not
// be UTF-8, unknown members are skipped, and the first of two members with the same name wins. One thing is
// stricter: an integer that does not fit its datatype is refused, whereas Triton keeps its low bits.
//
// No allocation depends on a size that the document merely claims.
package jsoninfer
