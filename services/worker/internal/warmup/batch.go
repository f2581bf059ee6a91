package warmup

import (
	"context"
	"fmt"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

var _ sequence.Batch = (*batch)(nil)

// batch is one execution of a sample.
type batch struct {
	ctx      context.Context //nolint:containedctx // of the execution, whose length the batch lives
	requests []*infer.Request
	calls    infer.Caller
	ended    chan struct{} // closed by Done

	mu       sync.Mutex
	final    []bool   // by request; guarded by mu
	failures []string // guarded by mu
	stop     func()   // guarded by mu
	done     bool     // guarded by mu
}

// execute runs the requests as one batch and returns what went wrong, once
// the instance is free again.
func execute(ctx context.Context, in backend.Instance, requests []*infer.Request, calls infer.Caller) []string {
	b := &batch{ctx: ctx, requests: requests, calls: calls, ended: make(chan struct{}), final: make([]bool, len(requests))}
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		b.cancel()
		close(stopped)
	})
	defer func() {
		if !unhook() {
			<-stopped // or it would meet the instance's next batch
		}
	}()
	late, free := backend.WithGrace(ctx)
	defer free()
	in.Execute(b)
	if !backend.Await(late, in, b.ended) {
		<-b.ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures
}

// Requests returns the sample's requests.
func (b *batch) Requests() []*infer.Request { return b.requests }

// Slots gives each request a sequence of its own, which it starts and ends.
func (b *batch) Slots() []infer.Slot {
	slots := make([]infer.Slot, len(b.requests))
	for i := range slots {
		slots[i] = infer.Slot{Index: uint32(i), Sequence: infer.Sequence{ID: uint64(i) + 1, Start: true, End: true}} //nolint:gosec // less than a batch size
	}
	return slots
}

// Pad is nothing: nobody counts a warm-up.
func (b *batch) Pad(int64) {}

// BatchSize is the number of requests, which have one row each.
func (b *batch) BatchSize() int64 { return int64(len(b.requests)) }

// Respond notes the end of a request and drops its outputs.
func (b *batch) Respond(i int, r *infer.Response) {
	r.Release()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.final[i] || b.done {
		return
	}
	if r.Err != nil {
		b.failures = append(b.failures, textOf(r.Err))
	}
	b.endLocked(i, r.Final || r.Err != nil)
}

func textOf(err error) string {
	if e := errs.From(err); errs.Classified(err) && e.Msg != "" {
		return e.Msg
	}
	return err.Error()
}

// endLocked notes whether request i has ended.
func (b *batch) endLocked(i int, final bool) {
	if b.final[i] = final; final {
		b.requests[i].Release()
	}
}

// Again ends a request: a warm-up is one iteration of it.
func (b *batch) Again(i int) bool {
	b.Respond(i, &infer.Response{Final: true})
	return false
}

// Room has no bound: nobody reads the responses of a warm-up.
func (b *batch) Room(int) <-chan struct{} {
	open := make(chan struct{})
	close(open)
	return open
}

// Call makes a call that has no parent, and is canceled when the warm-up is given up.
func (b *batch) Call(_ int, c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	ended := make(chan struct{})
	cancel = b.calls.Call(c, func(r *infer.Response) {
		if r.Final {
			close(ended)
		}
		receive(r)
	})
	unhook := context.AfterFunc(b.ctx, cancel)
	go func() {
		<-ended
		unhook()
	}()
	return cancel
}

// Canceled reports whether the warm-up was given up.
func (b *batch) Canceled(int) bool { return b.ctx.Err() != nil }

// OnCancel sets what stops the execution.
func (b *batch) OnCancel(stop func()) {
	b.mu.Lock()
	if !b.done {
		b.stop = stop
	}
	b.mu.Unlock()
	if b.ctx.Err() != nil {
		b.cancel()
	}
}

// OnCancelEach has nothing to tell: a warm-up is given up as a whole.
func (*batch) OnCancelEach(func(int)) {}

// cancel calls stop, once and not after Done. The lock is not held meanwhile,
// since stop may use the batch.
func (b *batch) cancel() {
	b.mu.Lock()
	stop := b.stop
	b.stop = nil
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// InputDone does nothing: nobody asks for the times of a warm-up.
func (b *batch) InputDone() {}

// InferDone does nothing.
func (b *batch) InferDone() {}

// Executed does nothing: statistics count requests of clients.
func (b *batch) Executed() {}

// GiveBack fails the warm-up: there is no other instance.
func (b *batch) GiveBack(err error) {
	for i := range b.requests {
		b.Respond(i, &infer.Response{Final: true, Err: err})
	}
	b.Done()
}

// Free is nothing: a warm-up waits for Done.
func (b *batch) Free() {}

// Done ends the batch; requests without a final response have failed.
func (b *batch) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.done, b.stop = true, nil
	for i := range b.requests {
		if !b.final[i] {
			b.failures = append(b.failures, fmt.Sprintf("the backend ended the batch without an answer to request %d", i))
			b.endLocked(i, true)
		}
	}
	close(b.ended)
}
