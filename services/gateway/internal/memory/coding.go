package memory

import (
	"context"
	"errors"
	"runtime"

	"golang.org/x/sync/semaphore"

	"github.com/nereid-serving/nereid/libs/errs"
)

// LargeBody is the size in bytes from which decompressing, parsing, compressing or formatting a body takes a
// processor long enough for other requests to notice.
const LargeBody = 256 << 10

// NewCoding returns a semaphore that bounds how many large bodies are encoded or decoded at once: as many as
// half of the processors, so that small requests never wait for large ones. It serves them in order of arrival,
// each to its end, so that only a few are in memory at a time.
func NewCoding() *semaphore.Weighted {
	return semaphore.NewWeighted(int64(max(runtime.GOMAXPROCS(0)/2, 1)))
}

// StartCoding waits until the call may encode or decode a large body. Once ctx has ended it returns an error
// with the reason canceled or deadline_queue, even if the call was already admitted. The caller must not wait
// for a client until EndCoding. Only one goroutine of a call may call it at a time.
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

// EndCoding lets the next call encode or decode a large body. It has no effect if the call is not coding.
func (a *Account) EndCoding() {
	if a != nil && a.coding {
		a.coding = false
		a.budget.coding.Release(1)
	}
}
