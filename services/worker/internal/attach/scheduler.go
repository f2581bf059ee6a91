package attach

import (
	"context"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

var _ infer.Scheduler = (*Attachment)(nil)

// Attach introduces the worker, once, with the memory of its batches. What it holds
// beside that the table knows.
func (a *Attachment) Attach(worker uint64, held infer.Held, e infer.Executor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.executor == nil
	if a.worker, a.memory, a.executor = worker, held.Memory, e; first {
		close(a.came)
	}
}

// Leave tells the scheduler, and if need be the next one, that the worker has ended: it
// runs nothing, and its gateways have acknowledged its answers. It waits until one has
// forgotten the worker, or ctx is done, and reports which.
func (a *Attachment) Leave(ctx context.Context) bool {
	a.mu.Lock()
	a.leaves = true
	if a.session != nil {
		a.session.Leave()
	}
	a.mu.Unlock()
	select {
	case <-a.left:
		return true
	case <-ctx.Done():
		return false
	}
}

// Detach ends the session: a worker that has closed its instances has nothing
// to say any more.
func (a *Attachment) Detach(uint64) {
	a.mu.Lock()
	session := a.session
	a.deps.Batches.Close()
	a.mu.Unlock()
	if session != nil {
		session.Close()
	}
}

// Grant offers an instance.
func (a *Attachment) Grant(g infer.Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deps.Batches.Grant(g)
	if a.session != nil {
		a.session.Grant(g) // does not block
	}
}

// Retire asks the scheduler that is there to give the instance no more batches;
// without one, none will come.
func (a *Attachment) Retire(id infer.InstanceID) {
	a.mu.Lock()
	ask, session, executor := a.deps.Batches.Retire(id), a.session, a.executor
	a.mu.Unlock()
	if ask {
		session.Retire(id)
	} else {
		executor.Retired(id)
	}
}

// InstanceFree passes on that an instance can take its next batch, to a session
// whose scheduler knows of this one.
func (a *Attachment) InstanceFree(f *infer.InstanceFree) {
	again := f.Again // of which the scheduler has its own references
	f.Again = nil
	a.mu.Lock()
	telling, session := a.deps.Batches.Free(f), a.session
	a.mu.Unlock()
	if telling == batches.Now {
		session.InstanceFree(f)
	}
	for _, r := range again {
		r.Release()
	}
}

// UnitDone passes on that a unit has ended after its instance was free.
func (a *Attachment) UnitDone(d infer.UnitDone) {
	a.mu.Lock()
	telling, session := a.deps.Batches.Done(&d), a.session
	a.mu.Unlock()
	if telling == batches.Now {
		session.UnitDone(d)
	}
}

// Return gives a batch back that has not started. A scheduler that did not give
// it on the present stream learns of it by the next hello, which is made to come
// soon. The requests that the batch does not name any more have been answered.
func (a *Attachment) Return(b *infer.Batch, err error) {
	a.mu.Lock()
	telling, session := a.deps.Batches.Return(b), a.session
	a.mu.Unlock()
	if telling == batches.Now {
		session.Return(b, err)
		return
	}
	if telling == batches.Hello && session != nil {
		session.Close()
	}
	for _, r := range b.Requests { // the scheduler has its own
		r.Release()
	}
}

// receiver takes what comes on the present session, one call at a time.
type receiver Attachment

// fetching is a batch whose inputs are brought.
type fetching struct {
	*infer.Batch
	cancel []func(error) // by request; nil where nothing is missing; the session's
}

// Execute enters a batch, and passes it on when the inputs of its requests can be
// read, so that no instance waits for a network. A request whose inputs cannot be
// had is answered, and the rest of its batch passes.
func (r *receiver) Execute(b *infer.Batch) {
	a := (*Attachment)(r)
	var missing []int
	for i, request := range b.Requests {
		if !readable(request) {
			missing = append(missing, i)
		}
	}
	f := &fetching{b, make([]func(error), len(b.Requests))}
	if err := a.deps.Batches.Arrive(b, missing, f); err != nil {
		a.Return(b, err)
		return
	}
	if len(missing) == 0 {
		a.present().Execute(b)
		return
	}
	for _, i := range missing {
		request, work := b.Requests[i], b.Requests[i].Work
		f.cancel[i] = a.deps.Fetch(request, func(err error) {
			if err != nil {
				request.Release()
				a.deps.Respond(infer.Refuse(work, err))
			}
			if a.deps.Batches.Fetched(b.ID, i, err != nil, outcomeOf(err)) {
				a.pass(f)
			}
		})
	}
}

// readable reports whether all inputs of a request can be read.
func readable(r *infer.Request) bool {
	for i := range r.Inputs {
		if place := r.Inputs[i].Data.Place; place != tensor.Local && place != tensor.Nowhere {
			return false
		}
	}
	return true
}

func outcomeOf(err error) infer.Outcome {
	if errs.Of(err) == errs.Canceled {
		return infer.Canceled
	}
	return infer.Rejected
}

// pass hands a batch whose inputs can be read to the executor, without the
// requests that have ended.
func (a *Attachment) pass(b *fetching) {
	left := a.deps.Batches.Left(b.ID)
	rest := b.Only(func(i int) bool { return left[i] })
	if len(rest.Requests) > 0 {
		a.present().Execute(rest)
		return
	}
	now := a.deps.Clock.Now()
	a.InstanceFree(&infer.InstanceFree{
		Batch: b.ID, Instance: b.Instance, Credits: 1, Timing: infer.Timing{Start: now, InputDone: now, InferDone: now, Done: now},
	})
}

// Cancel ends a request of a batch whose inputs are brought, or passes on.
func (r *receiver) Cancel(batch infer.BatchID, request infer.RequestID) {
	a := (*Attachment)(r)
	var f *fetching
	a.deps.Batches.With(batch, func(run any) { f, _ = run.(*fetching) })
	if f == nil {
		a.present().Cancel(batch, request)
		return
	}
	i := slices.IndexFunc(f.Requests, func(r *infer.Request) bool { return r.Work.Request == request })
	switch err := errs.New(errs.Canceled, ""); {
	case i < 0:
	case f.cancel[i] != nil:
		f.cancel[i](err)
	case a.deps.Batches.End(batch, i, infer.Canceled):
		r := f.Requests[i]
		work := r.Work
		r.Release()
		a.deps.Respond(infer.Refuse(work, err))
	}
}

// Retired passes the scheduler's word on.
func (r *receiver) Retired(id infer.InstanceID) {
	a := (*Attachment)(r)
	a.deps.Batches.Retired(id)
	a.present().Retired(id)
}

func (a *Attachment) present() infer.Executor {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.executor
}
