package core

import "github.com/nereid-serving/nereid/libs/errs"

// MemoryKind is a kind of memory that clients may share with Triton.
type MemoryKind string

// The kinds of client shared memory.
const (
	SystemMemory MemoryKind = "system"
	CUDAMemory   MemoryKind = "cuda"
)

// SharedMemoryDisabled refuses to register or unregister a region: clients send
// their tensors in requests.
func SharedMemoryDisabled() error {
	return errs.New(errs.Unsupported, "Client shared memory is disabled. Send the tensors in the request.")
}

// RegionNotFound refuses to describe a region, as there is none.
func RegionNotFound(kind MemoryKind, name string) error {
	return errs.New(errs.RegionNotFound, "Unable to find %s shared memory region: '%s'", kind, name)
}
