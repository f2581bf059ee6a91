package backend

import "sync/atomic"

// PinnedMemory accounts for pinned host memory, which GPUs read and write directly. It is safe for concurrent use;
// nil has none.
type PinnedMemory struct {
	limit int64
	used  atomic.Int64
}

// NewPinnedMemory returns an account with the given limit in bytes.
func NewPinnedMemory(limit int64) *PinnedMemory { return &PinnedMemory{limit: limit} }

// Take reserves bytes, or reports that there are not enough.
func (p *PinnedMemory) Take(bytes int64) bool {
	if p == nil {
		return false
	}
	if p.used.Add(bytes) > p.limit {
		p.used.Add(-bytes)
		return false
	}
	return true
}

// Give returns bytes.
func (p *PinnedMemory) Give(bytes int64) { p.used.Add(-bytes) }

// Bytes returns the limit and the bytes in use.
func (p *PinnedMemory) Bytes() (limit, used int64) {
	if p == nil {
		return 0, 0
	}
	return p.limit, p.used.Load()
}
