package instance

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/ledger"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

var _ sequence.Batch = (*batch)(nil)

// batch is a batch that is queued or runs. Batches are recycled: a batch is reset once both the lane and whoever
// ended it have released it.
type batch struct {
	lane     *lane
	accepted mono.Time
	of       *infer.Batch // the scheduler's again once its instance is free of all of it; replaced by Free under mu
	size     int64
	runs     int           // of the model; guarded by mu
	entry    *ledger.Entry // nil without a log
	broken   atomic.Bool   // the backend panicked: must not be recycled
	users    atomic.Int32  // the lane in Execute, the batch until it ends, and cancellations

	mu       sync.Mutex
	slots    []slot       // grown under mu; their fields: see slot
	waiting  int          // requests neither ended nor canceled; guarded by mu
	canceled bool         // any request; guarded by mu
	calls    *calls       // nil before the first; guarded by mu
	stop     func()       // guarded by mu
	each     func(i int)  // of OnCancelEach; guarded by mu
	stopping bool         // stop is being called; guarded by mu
	done     bool         // guarded by mu
	timing   infer.Timing // guarded by mu
	// givenBack is why the batch, which has not started, is returned; guarded by mu.
	givenBack error
	// end is what to report to the scheduler, and nil afterwards; guarded by mu.
	end *infer.InstanceFree
	// freed says that the instance can accept the next batch, freeing that this is being reported; ended is reported
	// afterwards. Guarded by mu.
	freed, freeing bool
	ended          []infer.UnitDone
	pausing        []paused // guarded by mu
}

// slot is the state of one request.
type slot struct {
	progress      // guarded by the batch's mu
	ended    bool // guarded by the batch's mu
	again    bool // ended, and will run another iteration; guarded by the batch's mu
	outcome  infer.Outcome
	canceled atomic.Bool
	told     bool // its cancellation was reported; guarded by the batch's mu
}

// begin prepares the batch.
func (b *batch) begin(l *lane, of *infer.Batch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lane, b.of, b.size = l, of, 0
	b.runs, b.entry, b.stop, b.each, b.stopping, b.done = 0, nil, nil, nil, false, false
	b.canceled, b.calls, b.timing, b.givenBack = false, nil, infer.Timing{}, nil
	b.freed, b.freeing, b.ended, b.pausing = false, false, b.ended[:0], nil
	n := len(of.Requests)
	if cap(b.slots) < n {
		b.slots = make([]slot, n)
	}
	b.slots, b.waiting = b.slots[:n], n
	for i, r := range of.Requests {
		s := &b.slots[i]
		s.ended, s.again, s.told, s.outcome = false, false, false, 0
		s.canceled.Store(false)
		s.progress = progress{}
		if i < len(of.Slots) {
			s.progress = l.resume(of.Slots[i].Index, r.Work.Request)
		}
		b.size += r.BatchSize
	}
	b.end = newEnd(n)
	b.users.Store(2)
}

// end puts an InstanceFree and its outcomes into one allocation for most batches.
type end struct {
	infer.InstanceFree
	room [16]infer.Outcome
}

func newEnd(requests int) *infer.InstanceFree {
	c := new(end)
	if requests <= len(c.room) {
		c.Outcomes = c.room[:requests:requests]
		return &c.InstanceFree
	}
	c.Outcomes = make([]infer.Outcome, requests)
	return &c.InstanceFree
}

// Requests returns the requests in the order of the batch.
func (b *batch) Requests() []*infer.Request { return b.of.Requests }

// Slots returns the slots of the requests if the model batches sequences.
func (b *batch) Slots() []infer.Slot { return b.of.Slots }

// Pad says that the execution has rows in addition to those of the requests.
func (b *batch) Pad(rows int64) { b.size += rows }

// BatchSize returns the sum of the requests' batch sizes and of padding rows.
func (b *batch) BatchSize() int64 { return b.size }

// Respond sends a response to request i and takes ownership of it.
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
	if !r.Final || r.Index > 0 || r.Err == nil && len(r.Outputs) == 0 {
		b.timeLocked(s, r)
	}
	s.ended = r.Final
	tell := false
	if !r.Final {
		r.OnRelease = s.windowLocked().add(r.OutputBytes())
	} else {
		if s.window != nil {
			s.window.lift()
		}
		s.outcome = outcome(s, r.Err)
		r.Execution = b.executionLocked(i)
		if !s.canceled.Load() {
			b.waiting--
		}
		tell = b.freed
	}
	request := b.of.Requests[i]
	work := request.Work
	b.mu.Unlock()
	b.send(request, r)
	if tell {
		b.tell(i, work)
	}
}

// executionLocked returns where the time of a request went that is getting its final response; zero if the batch has
// not started.
func (b *batch) executionLocked(i int) infer.Execution {
	started := b.timing.Start
	if started == 0 {
		return infer.Execution{}
	}
	now := b.lane.executor.deps.Clock.Now()
	ready := cmp.Or(b.timing.InputDone, now)
	own, all := max(b.of.Requests[i].BatchSize, 1), max(b.size, 1)
	took := now.Sub(started)
	if b.freed { // the instance was occupied until then
		took = b.timing.Done.Sub(started)
	}
	waited := time.Duration(0)
	if i < len(b.of.Enqueued) { // a scheduler sets it for all
		waited = max(started.Sub(b.of.Enqueued[i]), 0)
	}
	output := time.Duration(0)
	if b.timing.InferDone > 0 {
		output = max(now.Sub(b.timing.InferDone), 0)
	}
	return infer.Execution{
		Batch: b.of.ID, Instance: b.of.Instance, BatchSize: b.size,
		Waited: waited, Input: max(ready.Sub(started), 0), Ran: max(now.Sub(max(ready, started)), 0), Output: output,
		Cost: time.Duration(float64(took) * min(float64(own)/float64(all), 1)),
	}
}

// timeLocked records when one of several responses was sent, or the end of a request without any.
func (b *batch) timeLocked(s *slot, r *infer.Response) {
	now := b.lane.executor.deps.Clock.Now()
	if r.Index == 0 && !r.Final {
		s.first = now
	}
	if len(s.responses.Times) < infer.MaxResponseTimes {
		before := cmp.Or(s.given, b.timing.InputDone, b.timing.Start)
		s.responses.Times = append(s.responses.Times, max(now.Sub(before), 0))
	}
	s.given = now
	s.responses.Empty = r.Final && r.Err == nil && len(r.Outputs) == 0
}

// tell reports that a request has ended after its instance was free, once the latter has been reported.
func (b *batch) tell(i int, work infer.Work) {
	e := b.lane.executor
	now := e.deps.Clock.Now()
	b.mu.Lock()
	d := infer.UnitDone{Batch: b.of.ID, Instance: b.of.Instance, Work: work, At: now}
	d.Outcome, d.FirstResponse, d.Responses = b.slots[i].outcome, b.slots[i].first, b.slots[i].responses
	later := b.freeing
	if later {
		b.ended = append(b.ended, d)
	}
	b.mu.Unlock()
	if !later {
		e.deps.Scheduler.UnitDone(d)
	}
}

// send gives a response its identity and passes it on; it releases the request before the final one.
func (b *batch) send(request *infer.Request, r *infer.Response) {
	r.Work = request.Work
	r.Keep = request.KeepOutputs && !passesOn(request, r) && !b.lane.executor.deps.leaving()
	if r.Err != nil {
		r.Release()
		r.Outputs = nil
	}
	if r.Final {
		request.Release()
	}
	b.lane.executor.deps.Responder.Respond(r)
}

// passesOn reports whether an output is stored in an input, which its owner retains only until the end of the
// request.
func passesOn(request *infer.Request, r *infer.Response) bool {
	return slices.ContainsFunc(r.Outputs, func(out infer.Tensor) bool {
		return out.Data.Buffer != nil && slices.ContainsFunc(request.Inputs, func(in infer.Tensor) bool { return in.Data.Buffer == out.Data.Buffer })
	})
}

func outcome(s *slot, err error) infer.Outcome {
	switch {
	case s.canceled.Load() || errs.Of(err) == errs.Canceled:
		return infer.Canceled
	case err != nil:
		return infer.Failed
	}
	return infer.Succeeded
}

// Room returns a channel that can be received from when request i may send one more response.
func (b *batch) Room(i int) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slots[i].windowLocked().wait()
}

// windowLocked returns the slot's window. The window of a request that has been canceled or has ended is unlimited.
func (s *slot) windowLocked() *window {
	if s.window == nil {
		s.window = newWindow()
		if s.ended || s.canceled.Load() {
			s.window.lift()
		}
	}
	return s.window
}

// Canceled reports whether request i's client is gone.
func (b *batch) Canceled(i int) bool { return b.slots[i].canceled.Load() }

func (b *batch) abandoned() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting == 0
}

// OnCancel sets the function that stops the execution.
func (b *batch) OnCancel(stop func()) {
	b.mu.Lock()
	if !b.done {
		b.stop = stop
	}
	b.mu.Unlock()
	b.stopAbandoned()
}

// OnCancelEach sets the function that is notified of each canceled request.
func (b *batch) OnCancelEach(tell func(i int)) {
	b.mu.Lock()
	if !b.done {
		b.each = tell
	}
	b.mu.Unlock()
	b.tellCanceled()
}

// tellCanceled reports canceled requests that have not been reported yet. It does not hold the lock while it does so.
func (b *batch) tellCanceled() {
	var list []int
	b.mu.Lock()
	tell := b.each
	for i := range b.slots {
		if s := &b.slots[i]; tell != nil && !b.done && !s.told && !s.ended && s.canceled.Load() {
			s.told = true
			list = append(list, i)
		}
	}
	b.mu.Unlock()
	for _, i := range list {
		tell(i)
	}
}

// cancel marks a request as canceled.
func (b *batch) cancel(request infer.RequestID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	for i, r := range b.of.Requests {
		s := &b.slots[i]
		if r.Work.Request == request && !s.ended && !s.canceled.Swap(true) {
			b.waiting--
			b.canceled = true
			if s.window != nil {
				s.window.lift()
			}
		}
	}
}

// stopAbandoned calls stop if every request has been canceled or has ended, and at least one was canceled. It does
// not hold the lock meanwhile, since stop may use the batch. A Done in the meantime takes effect afterwards, so that
// stop never affects the instance's next batch.
func (b *batch) stopAbandoned() {
	b.mu.Lock()
	stop := b.stop
	if b.done || b.waiting > 0 || !b.canceled || stop == nil {
		b.mu.Unlock()
		return
	}
	b.stop, b.stopping = nil, true
	b.mu.Unlock()
	stop()
	b.mu.Lock()
	b.stopping = false
	over := b.done && !b.freeing
	b.mu.Unlock()
	if over {
		b.over()
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
		b.runs++
	}
}
