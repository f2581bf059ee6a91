// Package diagnostics finds errors in texts that people wrote, and suggests what
// was meant.
//
// [Read] reads protobuf text with the descriptor of its message. The stock parser
// decides what is valid, but stops at its first error and suggests nothing. Read
// continues after each finding, knows the position of each field, and returns the
// text without the faulty parts, so that the parser can read the rest.
package diagnostics
