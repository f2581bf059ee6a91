// Package client calls servers that speak the inference protocol: Nereid,
// Triton and others, over HTTP with binary tensors or over gRPC.
//
// Tensors are in the protocol's own layout: numbers as little-endian bytes in
// row-major order, BYTES elements each after its length (see
// [tensor.AppendBytes]). The package converts nothing.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Client is one server. It is safe for concurrent use. The deadline of a
// call's context goes with the request, so that the server can give up as
// well. An error of the server has its reason (see
// [errs.Of]), if the server gave one; other errors have none.
type Client interface {
	// Metadata describes a model; an empty version is the default one.
	Metadata(ctx context.Context, model, version string) (*Metadata, error)
	// Infer runs one request. The response's bytes belong to the caller.
	Infer(ctx context.Context, r *Request) (*Response, error)
	// Index lists the models of the repository, loaded or not.
	Index(ctx context.Context) ([]Model, error)
	// Explain returns the outcome of a recent request with that id. Servers support it only
	// over HTTP.
	Explain(ctx context.Context, id string) (*infer.Explanation, error)
	// Record returns a recording of the server's requests from now on, for package recording.
	// It also ends with ctx. Servers support it only over HTTP.
	Record(ctx context.Context, r *RecordRequest) (io.ReadCloser, error)
	// RegisterMemory registers a region of so many bytes of the POSIX shared memory key, which begins
	// with a slash, and UnregisterMemory unregisters it.
	RegisterMemory(ctx context.Context, name, key string, size int64) error
	UnregisterMemory(ctx context.Context, name string) error
	// Close ends the connections. The client is not used after it.
	Close() error
}

// Options configure a client. The zero value is plain text.
type Options struct {
	// TLS is nil for plain text, unless an address of https asks for TLS.
	TLS *tls.Config
	// Header is sent with every call: over HTTP as headers, over gRPC as metadata. It cannot
	// override headers of the protocol.
	Header http.Header
	// ConnectTimeout bounds the connection, and after it the TLS handshake; 0 is
	// 10 s. The call as a whole is bounded by its context alone.
	ConnectTimeout time.Duration
	// MaxResponseBytes bounds a response; 0 and more than 2 GiB - 1 are that.
	MaxResponseBytes int64
}

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	if o.MaxResponseBytes <= 0 || o.MaxResponseBytes > math.MaxInt32 {
		o.MaxResponseBytes = math.MaxInt32
	}
	return o
}

// Metadata describes a model's inputs and outputs.
type Metadata struct {
	Name     string
	Versions []string
	Platform string
	Inputs   []Description
	Outputs  []Description
}

// Description is an input or output of a model. In its shape -1 is any size,
// and the batch dimension is the first one where the model batches.
type Description struct {
	Name     string
	Datatype tensor.Datatype
	Shape    tensor.Shape
}

// Tensor is a named value.
type Tensor struct {
	Description
	Data []byte
}

// Request is one inference request. Without a version it uses the model's default, without
// outputs it requests all of them.
type Request struct {
	Model, Version, ID string
	Inputs             []Tensor
	Outputs            []string
}

// Response is what a model returns for a request.
type Response struct {
	Model, Version, ID string
	Outputs            []Tensor
}

// Model is a version of a model in the repository's index. Version and State
// are empty for a model that was never loaded; Reason is the cause of a state
// other than READY.
type Model struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	State   string `json:"state,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// describe reads a description off the wire.
func describe(name, datatype string, shape []int64) (Description, error) {
	d, ok := tensor.ParseDatatype(datatype)
	if !ok {
		return Description{}, errs.New(errs.Unsupported, "tensor %q has the datatype %q, which the protocol does not define", name, datatype)
	}
	return Description{Name: name, Datatype: d, Shape: shape}, nil
}

// RecordRequest says what to record. Empty lists match all.
type RecordRequest struct {
	// Models and Tenants are names, or patterns with * and ?.
	Models  []string `json:"models,omitempty"`
	Tenants []string `json:"tenants,omitempty"`
	// Share is the part of the requests that is recorded, in (0, 1].
	Share float64 `json:"share"`
	// MaxBytes and Seconds end the recording; the bytes are those before compression.
	MaxBytes int64   `json:"max_bytes"`
	Seconds  float64 `json:"seconds"`
	// Answers records the responses too.
	Answers bool `json:"answers,omitempty"`
}
