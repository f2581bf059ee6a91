package exchange

import (
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// patience is how long an order waits for inputs of requests without a
// deadline.
const patience = 30 * time.Second

// Inputs stand between a pool's scheduler and a worker's executor: orders pass
// when the inputs of their requests can be read. A request whose inputs cannot
// be had by its deadline is answered and the rest of the order passes, so that
// no instance waits for a network. It is safe for concurrent use.
type Inputs struct {
	infer.Scheduler
	worker *Worker
	clock  mono.Clock

	mu      sync.Mutex
	waiting map[orderID]*assembly       // guarded by mu
	partial map[orderID][]infer.Outcome // of orders that passed without some of their requests; guarded by mu
}

type orderID struct{ epoch, number uint64 }

func idOf(o *infer.Order) orderID { return orderID{o.Epoch, o.ID} }

// Attach puts the inputs in the way of the worker's orders.
func (n *Inputs) Attach(worker uint64, held infer.Held, e infer.Executor) {
	n.worker.introduce(worker)
	n.Scheduler.Attach(worker, held, &reader{n, e})
}

// Complete passes a completion on, with the outcomes of those requests that
// the executor did not see.
func (n *Inputs) Complete(c *infer.Completion) {
	id := orderID{c.Epoch, c.Order}
	n.mu.Lock()
	outcomes := n.partial[id]
	delete(n.partial, id)
	n.mu.Unlock()
	if outcomes != nil {
		c.Outcomes, c.FirstResponses = merged(outcomes, c)
	}
	n.Scheduler.Complete(c)
}

// Refuse passes a refusal on. The order names the requests that the executor
// was given: those without their inputs have been answered.
func (n *Inputs) Refuse(o *infer.Order, err error) {
	n.mu.Lock()
	delete(n.partial, idOf(o))
	n.mu.Unlock()
	n.Scheduler.Refuse(o, err)
}

// pending marks a request of an order that the executor has.
const pending = infer.Outcome(255)

// merged fills what the executor says of its requests in between those that it
// did not see.
func merged(outcomes []infer.Outcome, c *infer.Completion) ([]infer.Outcome, []mono.Time) {
	var first []mono.Time
	if c.FirstResponses != nil {
		first = make([]mono.Time, len(outcomes))
	}
	seen := 0
	for i, o := range outcomes {
		if o != pending {
			continue
		}
		outcomes[i] = c.Outcomes[seen]
		if first != nil {
			first[i] = c.FirstResponses[seen]
		}
		seen++
	}
	return outcomes, first
}

// reader is an executor whose orders wait for their inputs.
type reader struct {
	*Inputs
	next infer.Executor
}

// Execute passes the order on when its inputs can be read.
func (r *reader) Execute(o *infer.Order) {
	if readable(o) {
		r.next.Execute(o)
		return
	}
	a := &assembly{inputs: r.Inputs, next: r.next, order: o, failed: make([]error, len(o.Requests))}
	r.mu.Lock()
	r.waiting[idOf(o)] = a
	r.mu.Unlock()
	a.start()
}

func readable(o *infer.Order) bool {
	for _, request := range o.Requests {
		for i := range request.Inputs {
			if place := request.Inputs[i].Data.Place; place != tensor.Local && place != tensor.Nowhere {
				return false
			}
		}
	}
	return true
}

// Cancel ends a request's waiting for its inputs, or passes on.
func (r *reader) Cancel(order uint64, request infer.RequestID) {
	r.mu.Lock()
	var found []*assembly
	for id, a := range r.waiting {
		if id.number == order {
			found = append(found, a)
		}
	}
	r.mu.Unlock()
	for _, a := range found {
		if a.cancel(request) {
			return
		}
	}
	r.next.Cancel(order, request)
}

// Retired passes on: no order for the instance waits here.
func (r *reader) Retired(id infer.InstanceID) { r.next.Retired(id) }

// assembly is an order whose inputs are being brought.
type assembly struct {
	inputs *Inputs
	next   infer.Executor
	order  *infer.Order

	mu      sync.Mutex
	missing int           // inputs; guarded by mu
	failed  []error       // by request; guarded by mu
	left    []int         // missing inputs by request; guarded by mu
	abandon []func()      // what is under way; guarded by mu
	timers  []*time.Timer // guarded by mu
	passed  bool          // guarded by mu
}

// start asks for every input that cannot be read. Answers may come at once: the
// order is held up by one until all have been asked for.
func (a *assembly) start() {
	a.mu.Lock()
	a.missing, a.left = 1, make([]int, len(a.order.Requests))
	a.mu.Unlock()
	for i, r := range a.order.Requests {
		for j := range r.Inputs {
			if place := r.Inputs[j].Data.Place; place == tensor.Arena || place == tensor.Remote {
				a.ask(i, j)
			}
		}
		a.bound(i, r.Deadline)
	}
	a.mu.Lock()
	a.missing--
	a.passIfDone()
}

func (a *assembly) ask(request, input int) {
	named := a.order.Requests[request].Inputs[input].Data
	a.mu.Lock()
	a.missing++
	a.left[request]++
	a.mu.Unlock()
	abandon := a.inputs.worker.read(named, func(local tensor.Ref, err error) { a.got(request, input, local, err) })
	a.mu.Lock()
	a.abandon = append(a.abandon, abandon)
	a.mu.Unlock()
}

// bound ends the wait of a request that still has inputs missing at its
// deadline.
func (a *assembly) bound(request int, deadline mono.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left[request] == 0 {
		return
	}
	wait, err := patience, errs.New(errs.TransferFailed, "an input did not reach the worker within %v", patience)
	if left, bounded := deadline.Left(a.inputs.clock.Now()); bounded && left < wait {
		wait, err = left, errs.New(errs.DeadlineQueue, "the deadline passed before the inputs had reached the worker")
	}
	a.timers = append(a.timers, time.AfterFunc(wait, func() {
		a.mu.Lock()
		a.fail(request, err)
		a.passIfDone()
	}))
}

// got takes the bytes of an input.
func (a *assembly) got(request, input int, local tensor.Ref, err error) {
	a.mu.Lock()
	switch {
	case a.passed || a.failed[request] != nil:
		local.Release()
	case err != nil:
		a.fail(request, err)
	default:
		a.order.Requests[request].Inputs[input].Data = local
		a.left[request]--
		a.missing--
	}
	a.passIfDone()
}

// cancel fails a request that nobody waits for; false if the order has passed
// or has no such request.
func (a *assembly) cancel(id infer.RequestID) bool {
	a.mu.Lock()
	for i, r := range a.order.Requests {
		if r.Work.Request == id && !a.passed {
			a.fail(i, errs.New(errs.Cancelled, ""))
			a.passIfDone()
			return true
		}
	}
	a.mu.Unlock()
	return false
}

// fail gives a request up. The caller holds mu.
func (a *assembly) fail(request int, err error) {
	if a.passed || a.failed[request] != nil {
		return
	}
	a.failed[request] = err
	a.missing -= a.left[request]
	a.left[request] = 0
}

// passIfDone lets go mu, which the caller holds, and passes the order on if
// nothing is missing any more.
func (a *assembly) passIfDone() {
	if a.missing > 0 || a.passed {
		a.mu.Unlock()
		return
	}
	a.passed = true
	timers, abandon := a.timers, a.abandon
	a.mu.Unlock()
	for _, t := range timers {
		t.Stop()
	}
	for _, f := range abandon {
		f()
	}
	a.inputs.pass(a)
}

// pass hands an order to its executor, without the requests that failed.
func (n *Inputs) pass(a *assembly) {
	o := a.order
	rest := &infer.Order{ID: o.ID, Epoch: o.Epoch, Instance: o.Instance, LatestStart: o.LatestStart}
	outcomes := make([]infer.Outcome, len(o.Requests))
	for i, r := range o.Requests {
		if err := a.failed[i]; err != nil {
			outcomes[i] = outcomeOf(err)
			work := r.Work
			r.Release()
			n.worker.Respond(infer.Refuse(work, err))
			continue
		}
		outcomes[i] = pending
		rest.Requests = append(rest.Requests, r)
		rest.Enqueued = append(rest.Enqueued, o.Enqueued[i])
	}
	n.mu.Lock()
	delete(n.waiting, idOf(o))
	if len(rest.Requests) > 0 && len(rest.Requests) < len(o.Requests) {
		n.partial[idOf(o)] = outcomes
	}
	n.mu.Unlock()
	if len(rest.Requests) > 0 {
		a.next.Execute(rest)
		return
	}
	now := n.clock.Now()
	n.Scheduler.Complete(&infer.Completion{
		Order: o.ID, Epoch: o.Epoch, Instance: o.Instance, Outcomes: outcomes, Credits: 1,
		Timing: infer.Timing{Start: now, InputDone: now, InferDone: now, Done: now},
	})
}

func outcomeOf(err error) infer.Outcome {
	if errs.Of(err) == errs.Cancelled {
		return infer.Canceled
	}
	return infer.Rejected
}
