// Package modelconfig turns a model's config.pbtxt into one normalized,
// validated configuration.
//
// [Load] is the whole way from text to message, for readers of repositories; [FromProto] is the way from a stored message to the immutable
// [Config] that serving code works with. Every problem of a configuration is
// reported at once, with its line, field and fix (see [Problem]); a setting
// that is valid in Triton and not served here is a problem too, never ignored.
//
// What a configuration leaves out is completed from an ONNX model's header,
// and the files that it names are looked at, by functions that the caller
// gives (see [Directory]); the package itself opens nothing.
package modelconfig
