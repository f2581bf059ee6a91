package backend

import "sync/atomic"

// PinnedMemory counts the memory of the host that stays in its place, so that GPUs copy from
// and to it by themselves. It is safe for concurrent use; nil has none.
type PinnedMemory struct {
	limit int64
	used  atomic.Int64
}

// NewPinnedMemory allows so many bytes.
func NewPinnedMemory(limit int64) *PinnedMemory { return &PinnedMemory{limit: limit} }

// Take takes bytes, or reports that there are not so many.
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

// Give gives bytes back.
func (p *PinnedMemory) Give(bytes int64) { p.used.Add(-bytes) }

// Bytes are those that there may be, and those in use.
func (p *PinnedMemory) Bytes() (limit, used int64) {
	if p == nil {
		return 0, 0
	}
	return p.limit, p.used.Load()
}
