// Package modelconfig turns a model's config.pbtxt into one normalized,
// validated configuration.
//
// [Load] converts text to a message, for readers of repositories. [FromProto]
// converts a stored message to the immutable [Config] that serving code uses.
// Every problem of a configuration is reported at once, with its line, field and
// fix (see [Problem]). A setting that is valid in Triton and not supported here
// is a problem too, never ignored.
//
// Missing fields are completed from an ONNX model's header. Functions that the
// caller provides read that header and check the files that a configuration
// names (see [Directory]); the package itself opens nothing.
package modelconfig
