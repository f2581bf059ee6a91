package core

import (
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Budget bounds the bytes that the requests of all clients hold together,
// from their arrival to their answers. Bytes count when they have come, not
// when they are announced: a client that announces much and sends nothing
// takes nothing from the others. It is safe for concurrent use; a nil Budget
// has no bound.
type Budget struct {
	limit int64 // 0 for no bound
	held  atomic.Int64
}

// NewBudget makes a budget of limit bytes, or one without a bound if that is 0.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Take adds n bytes of a request, or returns an error of the reason
// memory_full. What was taken is given back with [Budget.Give].
func (b *Budget) Take(n int64) error {
	if b == nil {
		return nil
	}
	held := b.held.Add(n)
	if b.limit == 0 || held <= b.limit {
		return nil
	}
	b.held.Add(-n)
	return errs.New(errs.MemoryFull, "the requests in flight hold %d bytes: %d more would exceed the maximum of %d", held-n, n, b.limit)
}

// Give takes n bytes out again.
func (b *Budget) Give(n int64) {
	if b != nil {
		b.held.Add(-n)
	}
}

// Held returns the bytes that are held now.
func (b *Budget) Held() int64 { return b.held.Load() }

// Most returns limit, or what the budget has in all if that is less: more
// than that no request can hold.
func (b *Budget) Most(limit int64) int64 {
	if b == nil || b.limit == 0 {
		return limit
	}
	return min(limit, b.limit)
}
