package tensor

import "golang.org/x/sys/unix"

// Memory provides the mapped memory of a [Pool]. Its methods are safe for concurrent use.
type Memory interface {
	// Map returns size bytes outside the Go heap, page-aligned, with any
	// content.
	Map(size int) ([]byte, error)
	// Retire says that the buffer in mem was released. The pool keeps mem, or
	// unmaps it next.
	Retire(mem []byte)
	// Unmap releases the result of Map.
	Unmap(mem []byte)
}

// Anonymous is memory that only this process can access.
type Anonymous struct{}

// Map asks the operating system for memory.
func (Anonymous) Map(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// Retire does nothing: no other process reads the memory.
func (Anonymous) Retire([]byte) {}

// Unmap gives memory back to the operating system.
func (Anonymous) Unmap(mem []byte) {
	// The address and length are those of a mapping: this cannot fail.
	_ = unix.Munmap(mem)
}
