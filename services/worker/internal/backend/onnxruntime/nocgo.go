//go:build !cgo

package onnxruntime

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Backend is the ONNX Runtime backend, which a build without cgo does not
// have.
type Backend struct{}

// Open fails with reason library_missing.
func Open(string, Options) (*Backend, error) { return nil, absent() }

func absent() error {
	return errs.New(errs.LibraryMissing, "this binary was built without cgo and cannot run ONNX models: build it with CGO_ENABLED=1")
}

// Version returns the empty string.
func (b *Backend) Version() string { return "" }

// Held returns 0.
func (b *Backend) Held() int64 { return 0 }

// Load fails with reason library_missing.
func (b *Backend) Load(context.Context, backend.Version) (backend.Model, error) { return nil, absent() }

// Close does nothing.
func (b *Backend) Close() error { return nil }
