// Package diagnostics says what is wrong with a text that people wrote, and what
// was probably meant.
//
// [Read] reads protobuf text beside the descriptor of its message. The stock
// parser decides what is valid; it stops at its first error and has nothing to
// suggest. Read goes on after each finding, knows where each field stands, and
// gives the text without its findings, so that the parser can read the rest.
package diagnostics
