package core

import "sync/atomic"

// Account is what one call holds of the budget: the bytes that were received for
// it, and its responses that have not been sent. The zero value has no bound. It
// is safe for concurrent use.
type Account struct {
	budget   *Budget
	received atomic.Int64
	waiting  atomic.Int64 // of responses
}

// Open begins an account of b, which may be nil.
func (a *Account) Open(b *Budget) { a.budget = b }

// Receive charges n bytes that were received, or returns the budget's refusal.
func (a *Account) Receive(n int64) error {
	if err := a.budget.Reserve(n); err != nil {
		return err
	}
	a.received.Add(n)
	return nil
}

// Return returns n bytes that were received and are not held any more.
func (a *Account) Return(n int64) {
	a.received.Add(-n)
	a.budget.Release(n)
}

// Charge charges n bytes of a response, or returns the budget's refusal. The
// final response takes the place of the request, whose inputs have been read.
func (a *Account) Charge(n int64, final bool) error {
	if final {
		a.budget.Release(a.received.Swap(0))
	}
	if err := a.budget.Reserve(n); err != nil {
		return err
	}
	a.waiting.Add(n)
	return nil
}

// Refund returns n bytes of a response.
func (a *Account) Refund(n int64) {
	a.waiting.Add(-n)
	a.budget.Release(n)
}

// Detach keeps n bytes of a response charged beyond the account's end, until the
// function that it returns is called.
func (a *Account) Detach(n int64) (release func()) {
	a.waiting.Add(-n)
	b := a.budget
	return func() { b.Release(n) }
}

// Close returns all bytes.
func (a *Account) Close() { a.budget.Release(a.received.Swap(0) + a.waiting.Swap(0)) }
