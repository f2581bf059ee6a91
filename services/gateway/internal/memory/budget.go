package memory

import (
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Budget bounds the bytes of many calls together, from their arrival to their responses. Bytes count when
// memory is allocated for them, not when a client announces them: a large Content-Length alone reserves
// nothing. It is safe for concurrent use. A nil Budget has no bound.
type Budget struct {
	within   *Budget // bounds this budget and others together; nil for none
	reason   errs.Reason
	limit    atomic.Int64
	reserved atomic.Int64
	coding   *semaphore.Weighted // large bodies that are being encoded or decoded; shared with within
}

// NewBudget returns a budget of limit bytes; 0 means no bound.
func NewBudget(limit int64) *Budget {
	b := &Budget{reason: errs.MemoryFull, coding: NewCoding()}
	b.limit.Store(limit)
	return b
}

// Within returns a tenant's budget of limit bytes, 0 for no bound of its own. Its reservations also count in b,
// which may be nil.
func (b *Budget) Within(limit int64) *Budget {
	part := &Budget{within: b, reason: errs.TenantMemory}
	if b != nil {
		part.coding = b.coding
	} else {
		part.coding = NewCoding()
	}
	part.limit.Store(limit)
	return part
}

// SetLimit changes the bound for later reservations; 0 means none.
func (b *Budget) SetLimit(limit int64) { b.limit.Store(limit) }

// Reserve reserves n bytes, or returns an error with the reason memory_full or, for a tenant's budget,
// tenant_memory. [Budget.Release] undoes it.
func (b *Budget) Reserve(n int64) error {
	if b == nil || n == 0 {
		return nil
	}
	limit, total := b.limit.Load(), b.reserved.Add(n)
	if limit != 0 && total > limit {
		b.reserved.Add(-n)
		return errs.New(b.reason, "the requests in flight hold %d bytes: %d more would exceed the maximum of %d", total-n, n, limit)
	}
	if err := b.within.Reserve(n); err != nil {
		b.reserved.Add(-n)
		return err
	}
	return nil
}

// Hold reserves n bytes that are already allocated, whatever the bound.
func (b *Budget) Hold(n int64) {
	for ; b != nil; b = b.within {
		b.reserved.Add(n)
	}
}

// Release returns n reserved bytes.
func (b *Budget) Release(n int64) { b.Hold(-n) }

// Reserved returns the bytes reserved now.
func (b *Budget) Reserved() int64 { return b.reserved.Load() }

// Exceeded returns an error with the reason memory_full or tenant_memory while more bytes are reserved than the
// bound allows.
func (b *Budget) Exceeded() error {
	for ; b != nil; b = b.within {
		if limit, total := b.limit.Load(), b.reserved.Load(); limit != 0 && total > limit {
			return errs.New(b.reason, "the requests in flight hold %d bytes, of %d", total, limit)
		}
	}
	return nil
}

// Cap returns limit, or the whole budget if that is less: no request can hold more.
func (b *Budget) Cap(limit int64) int64 {
	for ; b != nil; b = b.within {
		if own := b.limit.Load(); own != 0 {
			limit = min(limit, own)
		}
	}
	return limit
}
