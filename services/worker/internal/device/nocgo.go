//go:build !cgo

package device

import "errors"

// CUDA is what a build without cgo does not have.
type CUDA struct{}

// New returns no CUDA.
func New([]string) *CUDA { return &CUDA{} }

// Open fails.
func (*CUDA) Open(int) error {
	return errors.New("this binary was built without cgo and uses no GPU: build it with CGO_ENABLED=1")
}

// Map fails as Open does.
func (d *CUDA) Map(int, [HandleBytes]byte) (*Region, error) { return nil, d.Open(0) }

// Region is never mapped.
type Region struct{}

// Bytes returns 0.
func (*Region) Bytes() uint64 { return 0 }

// Read does nothing.
func (*Region) Read([]byte, uint64) error { return nil }

// Write does nothing.
func (*Region) Write([]byte, uint64) error { return nil }

// Close does nothing.
func (*Region) Close() {}
