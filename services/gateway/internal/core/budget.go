package core

import (
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Budget bounds the bytes of all requests together, from their arrival to their
// responses. Bytes count when they are received, not when they are announced: a
// large Content-Length alone reserves nothing. It is safe for concurrent use; a
// nil Budget has no bound.
type Budget struct {
	limit    int64 // 0 for no bound
	reserved atomic.Int64
}

// NewBudget returns a budget of limit bytes; 0 is no bound.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Reserve reserves n bytes, or returns an error of the reason memory_full.
// [Budget.Release] undoes it.
func (b *Budget) Reserve(n int64) error {
	if b == nil {
		return nil
	}
	total := b.reserved.Add(n)
	if b.limit == 0 || total <= b.limit {
		return nil
	}
	b.reserved.Add(-n)
	return errs.New(errs.MemoryFull, "the requests in flight hold %d bytes: %d more would exceed the maximum of %d", total-n, n, b.limit)
}

// Hold reserves n bytes that are there already, whatever the bound.
func (b *Budget) Hold(n int64) {
	if b != nil {
		b.reserved.Add(n)
	}
}

// Release returns n reserved bytes.
func (b *Budget) Release(n int64) {
	if b != nil {
		b.reserved.Add(-n)
	}
}

// Reserved returns the bytes reserved now.
func (b *Budget) Reserved() int64 { return b.reserved.Load() }

// Cap returns limit, or the whole budget if that is less: no request can hold
// more.
func (b *Budget) Cap(limit int64) int64 {
	if b == nil || b.limit == 0 {
		return limit
	}
	return min(limit, b.limit)
}
