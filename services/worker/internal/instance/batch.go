package instance

import (
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
)

var _ backend.Batch = (*batch)(nil)

// batch is one order being executed. Batches are recycled: one is reset when
// both the lane and whoever ended it have let it go.
type batch struct {
	lane *lane
	// accepted is when the order was.
	accepted mono.Time
	order    *infer.Order // the scheduler's again once it is completed
	rows     int64
	record   *ledger.Record // nil if the backend was never called
	broken   atomic.Bool    // the backend panicked: not to be recycled
	users    atomic.Int32   // the lane in Execute, and the batch until it ends

	mu        sync.Mutex
	slots     []slot       // grown under mu; their fields: see slot
	waiting   int          // requests neither ended nor cancelled; guarded by mu
	cancelled bool         // any request; guarded by mu
	stop      func()       // guarded by mu
	stopping  bool         // stop is being called; guarded by mu
	done      bool         // guarded by mu
	timing    infer.Timing // Start: the lane's; the rest guarded by mu
	completed *infer.Completion
}

// slot is the state of one request.
type slot struct {
	next      uint32 // index of the next response; guarded by the batch's mu
	ended     bool   // guarded by the batch's mu
	cancelled atomic.Bool
}

// begin readies the batch for an order.
func (b *batch) begin(l *lane, o *infer.Order) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lane, b.order, b.rows = l, o, 0
	b.record, b.stop, b.stopping, b.done = nil, nil, false, false
	b.cancelled, b.timing = false, infer.Timing{}
	n := len(o.Requests)
	if cap(b.slots) < n {
		b.slots = make([]slot, n)
	}
	b.slots, b.waiting = b.slots[:n], n
	for i, r := range o.Requests {
		s := &b.slots[i]
		s.next, s.ended = 0, false
		s.cancelled.Store(false)
		b.rows += r.Rows
	}
	b.completed = newCompletion(n)
	b.users.Store(2)
}

// completion and its outcomes are one allocation for most batches.
type completion struct {
	infer.Completion
	room [16]infer.Outcome
}

func newCompletion(requests int) *infer.Completion {
	c := new(completion)
	if requests <= len(c.room) {
		c.Outcomes = c.room[:requests:requests]
		return &c.Completion
	}
	c.Outcomes = make([]infer.Outcome, requests)
	return &c.Completion
}

// Requests returns the requests in the order of their rows.
func (b *batch) Requests() []*infer.Request { return b.order.Requests }

// Rows is the sum of the requests' rows.
func (b *batch) Rows() int64 { return b.rows }

// Respond sends a response to request i and takes it over.
func (b *batch) Respond(i int, r *infer.Response) {
	b.mu.Lock()
	s := &b.slots[i]
	if s.ended || b.done {
		b.mu.Unlock()
		r.Release()
		return
	}
	r.Final = r.Final || r.Err != nil
	r.Index = s.next
	s.next++
	if r.Index == 0 && !r.Final {
		b.timeFirst(i)
	}
	s.ended = r.Final
	if r.Final {
		b.completed.Outcomes[i] = outcome(s, r.Err)
		if !s.cancelled.Load() {
			b.waiting--
		}
	}
	b.mu.Unlock()
	b.send(b.order.Requests[i], r)
}

// timeFirst notes when a request of several responses was given its first.
// The caller holds mu.
func (b *batch) timeFirst(i int) {
	if b.completed.FirstResponses == nil {
		b.completed.FirstResponses = make([]mono.Time, len(b.slots))
	}
	b.completed.FirstResponses[i] = b.lane.executor.deps.Clock.Now()
}

// send gives a response its identity and passes it on; before the final one
// the request is released.
func (b *batch) send(request *infer.Request, r *infer.Response) {
	r.Work = request.Work
	if r.Err != nil {
		r.Release()
		r.Outputs = nil
	}
	if r.Final {
		request.Release()
	}
	b.lane.executor.deps.Responder.Respond(r)
}

func outcome(s *slot, err error) infer.Outcome {
	switch {
	case s.cancelled.Load() || errs.Of(err) == errs.Cancelled:
		return infer.Canceled
	case err != nil:
		return infer.Failed
	}
	return infer.Succeeded
}

// Cancelled reports whether request i's client is gone.
func (b *batch) Cancelled(i int) bool { return b.slots[i].cancelled.Load() }

func (b *batch) abandoned() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting == 0
}

// OnCancel sets what stops the execution.
func (b *batch) OnCancel(stop func()) {
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return
	}
	b.stop = stop
	b.callStop()
}

// cancel marks a request. The caller holds b.mu, which is let go.
func (b *batch) cancel(request infer.RequestID) {
	if b.done {
		b.mu.Unlock()
		return
	}
	for i, r := range b.order.Requests {
		s := &b.slots[i]
		if r.Work.Request == request && !s.ended && !s.cancelled.Swap(true) {
			b.waiting--
			b.cancelled = true
		}
	}
	b.callStop()
}

// callStop calls stop if every request has been cancelled or has ended before
// that, and lets go b.mu, which the caller
// holds. The lock is not held meanwhile, since stop may use the batch; a Done
// that comes meanwhile takes effect afterwards, so that stop never meets the
// instance's next batch.
func (b *batch) callStop() {
	stop := b.stop
	if b.waiting > 0 || !b.cancelled || stop == nil {
		b.mu.Unlock()
		return
	}
	b.stop, b.stopping = nil, true
	b.mu.Unlock()
	stop()
	b.mu.Lock()
	b.stopping = false
	end := b.done
	b.mu.Unlock()
	if end {
		b.end()
	}
}

// InputDone marks the end of the input phase.
func (b *batch) InputDone() { b.mark(&b.timing.InputDone) }

// InferDone marks the end of the model's run.
func (b *batch) InferDone() { b.mark(&b.timing.InferDone) }

// Executed counts one run of the model.
func (b *batch) Executed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.done {
		b.completed.Executions++
	}
}
