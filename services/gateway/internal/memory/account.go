package memory

import (
	"math"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Account is what one call holds of a budget: the memory for its client's bytes, and the responses that have
// not been sent. The zero value is open and unbounded, and so is a nil Account. After Close an account may be
// reused by Open. It is safe for concurrent use.
type Account struct {
	budget    *Budget
	request   holding // until the final response replaces it
	lasting   holding // until Close
	responses holding
	coding    bool // a large body is being coded; used only by the goroutine that does it
}

// holding is a sum of bytes. A closed one is negative and accepts no more.
type holding struct{ bytes atomic.Int64 }

const closed = -1 << 62

// add adds n bytes, and reports whether the holding is open.
func (h *holding) add(n int64) bool {
	for {
		now := h.bytes.Load()
		if now < 0 {
			return false
		}
		if h.bytes.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

// drop subtracts n bytes, at most what there is, and returns how many.
func (h *holding) drop(n int64) int64 {
	for {
		now := h.bytes.Load()
		if now <= 0 {
			return 0
		}
		if n = min(n, now); h.bytes.CompareAndSwap(now, now-n) {
			return n
		}
	}
}

// close removes all bytes and returns their number.
func (h *holding) close() int64 { return max(h.bytes.Swap(closed), 0) }

// Open opens the account on b, which may be nil. It first releases what the account holds.
func (a *Account) Open(b *Budget) {
	a.Close()
	a.budget = b
	for _, h := range []*holding{&a.request, &a.lasting, &a.responses} {
		h.bytes.Store(0)
	}
}

// Fork returns another account on the same budget, for work that may outlive the call. The caller closes it.
func (a *Account) Fork() *Account {
	if a == nil {
		return nil
	}
	return &Account{budget: a.budget}
}

// Receive charges n bytes of memory for the request, or returns the budget's refusal. They are released by
// Return, or when the final response replaces the request, whose inputs have been read by then.
func (a *Account) Receive(n int64) error {
	if a == nil {
		return nil
	}
	return a.charge(&a.request, n)
}

// Return releases n bytes that Receive charged.
func (a *Account) Return(n int64) {
	if a != nil {
		a.budget.Release(a.request.drop(n))
	}
}

// Retain charges n bytes that the call holds until its end, such as names and the encoded response.
func (a *Account) Retain(n int64) error {
	if a == nil {
		return nil
	}
	return a.charge(&a.lasting, n)
}

// Drop releases n bytes that Retain charged.
func (a *Account) Drop(n int64) {
	if a != nil {
		a.budget.Release(a.lasting.drop(n))
	}
}

// Charge charges n bytes of a response, or returns the budget's refusal. A final response replaces the request.
func (a *Account) Charge(n int64, final bool) error {
	if final {
		a.budget.Release(a.request.drop(math.MaxInt64))
	}
	return a.charge(&a.responses, n)
}

// Refund releases n bytes of a response.
func (a *Account) Refund(n int64) { a.budget.Release(a.responses.drop(n)) }

// Detach keeps n bytes of a response charged beyond the account's end, until release is called.
func (a *Account) Detach(n int64) (release func()) {
	n, b := a.responses.drop(n), a.budget
	return func() { b.Release(n) }
}

// Close releases all bytes. Until the next Open the account accepts no more, since any later work is for a call
// that has ended.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.budget.Release(a.request.close() + a.lasting.close() + a.responses.close())
}

func (a *Account) charge(h *holding, n int64) error {
	if err := a.budget.Reserve(n); err != nil {
		return err
	}
	if !h.add(n) {
		a.budget.Release(n)
		return errs.New(errs.Canceled, "the call has ended")
	}
	return nil
}
