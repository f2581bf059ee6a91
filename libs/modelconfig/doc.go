// Package modelconfig turns a model's config.pbtxt into one normalised,
// validated configuration.
//
// [Load] is the whole way from text to message, for whoever reads a
// repository; [FromProto] is the way from a stored message to the immutable
// [Config] that serving code works with. Every problem of a configuration is
// reported at once, with its line, field and fix (see [Problem]); a setting
// that is valid in Triton and not served here is a problem too, never ignored.
//
// The package reads no files, and it does not complete a configuration from a
// model file: inputs and outputs must be written down.
package modelconfig
