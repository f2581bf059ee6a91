package instance

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// calls are the calls of one batch that have not ended. They outlive the batch if nobody waits for them.
type calls struct {
	mu   sync.Mutex
	open map[*call]struct{} // guarded by mu
}

// call is one call.
type call struct {
	request  int    // that made the call, or [backend.AllRequests]
	cancel   func() // nil until the call is made; guarded by the calls' mu
	canceled bool   // guarded by the calls' mu
}

// Call makes a call on behalf of request i, or of all. It makes no call for a parent that nobody waits for any more.
func (b *batch) Call(i int, c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	b.mu.Lock()
	err := b.adoptLocked(i, c)
	if b.calls == nil && err == nil {
		b.calls = &calls{open: make(map[*call]struct{})}
	}
	all, caller := b.calls, b.lane.executor.deps.Calls
	var made *call
	if err == nil {
		made = all.add(i)
	}
	b.mu.Unlock()
	if err != nil {
		c.Release()
		receive(&infer.Response{Final: true, Err: err})
		return func() {}
	}
	cancel = caller.Call(c, func(r *infer.Response) {
		if r.Final {
			all.end(made)
		}
		receive(r)
	})
	all.made(made, cancel)
	return cancel
}

// adoptLocked sets what a call inherits from its parent.
func (b *batch) adoptLocked(i int, c *infer.Call) error {
	if b.done || i != backend.AllRequests && b.slots[i].ended {
		return errs.New(errs.Canceled, "model '%s' calls model '%s' for a request that has its last response", b.lane.spec.Model.Name, c.Model).
			WithModel(b.lane.spec.Model.Name)
	}
	requests, canceled := b.of.Requests, b.canceled && b.waiting == 0
	if i != backend.AllRequests {
		requests, canceled = requests[i:i+1], b.slots[i].canceled.Load()
	}
	if canceled {
		return errs.New(errs.Canceled, "")
	}
	first := requests[0]
	c.Parent = infer.Parent{Batch: b.of.ID, Unit: first.Work.Unit(), Alone: i != backend.AllRequests}
	c.Tenant, c.CostClass, c.Share, c.Deadline = first.Tenant, first.CostClass, first.Share, latest(requests)
	return nil
}

// latest returns when the last client stops waiting, or 0 for never.
func latest(requests []*infer.Request) (deadline mono.Time) {
	for _, r := range requests {
		if r.Deadline == 0 {
			return 0
		}
		deadline = max(deadline, r.Deadline)
	}
	return deadline
}

// hangUp cancels the calls whose parents nobody waits for.
func (b *batch) hangUp() {
	b.mu.Lock()
	all, abandoned := b.calls, b.canceled && b.waiting == 0
	b.mu.Unlock()
	if all != nil {
		all.cancel(func(i int) bool { return abandoned || i != backend.AllRequests && b.slots[i].canceled.Load() })
	}
}

func (s *calls) add(request int) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &call{request: request}
	s.open[c] = struct{}{}
	return c
}

func (s *calls) end(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// made sets how to cancel a call, and cancels it if that was already requested.
func (s *calls) made(c *call, cancel func()) {
	s.mu.Lock()
	c.cancel = cancel
	canceled := c.canceled
	s.mu.Unlock()
	if canceled {
		cancel()
	}
}

// cancel cancels the calls of the requests that which selects.
func (s *calls) cancel(which func(request int) bool) {
	var cancels []func()
	s.mu.Lock()
	for c := range s.open {
		if which(c.request) && !c.canceled {
			c.canceled = true
			if c.cancel != nil {
				cancels = append(cancels, c.cancel)
			}
		}
	}
	s.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
}
