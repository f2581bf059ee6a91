// Package jsoninfer reads and writes the JSON of the inference protocol: the
// envelope of a request with the numbers of its tensors, and the envelope of
// a response.
//
// Tensors are most of such a document, so they are parsed straight into the
// bytes that the model will see and printed straight from them; nothing is
// built in between. What is accepted follows Triton's reader: NaN, Infinity
// and Inf are numbers, arrays nest in any way up to [MaxDepth], strings are
// bytes that need not be UTF-8, unknown members are skipped, and the first of
// two members of the same name counts. One thing is stricter: an integer that
// does not fit its datatype is refused, where Triton keeps its low bits.
//
// Nothing here allocates by a size that the document merely claims.
package jsoninfer
