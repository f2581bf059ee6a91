package memory

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sync/semaphore"

	"github.com/nereid-serving/nereid/libs/errs"
)

// LargeBody is the size in bytes from which decompressing or parsing a body, or the opposite,
// takes a processor for so long that other requests notice.
const LargeBody = 256 << 10

// NewCoding returns what bounds how many large bodies are encoded or decoded at once: half of
// the processors, so that small requests never wait for large ones. It serves them in the
// order in which they come, each to its end, so that few of them are in memory at a time.
func NewCoding() *semaphore.Weighted {
	return semaphore.NewWeighted(int64(max(runtime.GOMAXPROCS(0)/2, 1)))
}

// StartCoding waits until the call may encode or decode a large body. It returns an error of
// the reason canceled or deadline_queue once ctx has ended, also in a call that it has let
// in before. Whoever calls it waits for no client until EndCoding; one goroutine of the call
// at a time does.
func (a *Account) StartCoding(ctx context.Context) error {
	if a == nil || a.budget == nil {
		return nil
	}
	err := ctx.Err()
	if err == nil && !a.coding {
		err = a.budget.coding.Acquire(ctx, 1)
		a.coding = err == nil
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errs.Wrap(errs.DeadlineQueue, err, "the deadline passed before the large body was decoded or encoded")
	case err != nil:
		return errs.Wrap(errs.Canceled, err, "the call ended before its body was decoded or encoded")
	}
	return nil
}

// EndCoding lets the next call encode or decode a large body. It does nothing in a call
// that does neither.
func (a *Account) EndCoding() {
	if a != nil && a.coding {
		a.coding = false
		a.budget.coding.Release(1)
	}
}
