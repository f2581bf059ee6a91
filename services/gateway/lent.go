package gateway

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
)

// lent is what the gateway's requests lend to workers. It is kept until a request's
// final response, since until then a worker may read it. It is safe for concurrent
// use.
type lent struct {
	exports *export.Exports

	mu       sync.Mutex
	requests map[infer.RequestID]lentInputs // guarded by mu
}

// lentInputs are a request's inputs as they are named, and the lease of them.
type lentInputs struct {
	named []infer.Tensor
	lease export.Lease
}

func newLent(e *export.Exports) *lent {
	return &lent{exports: e, requests: make(map[infer.RequestID]lentInputs)}
}

// name returns what to submit in the place of r: r itself, or a copy in which
// large inputs are named instead of held. A request may be submitted again.
func (l *lent) name(r *infer.Request) *infer.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	inputs, again := l.requests[r.Work.Request]
	if !again {
		inputs.named, inputs.lease = l.exports.Lend(r.Inputs, r.Work.Request.Origin)
		if inputs.lease.Empty() {
			return r
		}
		l.requests[r.Work.Request] = inputs
	}
	copied := *r
	copied.Inputs = inputs.named
	return &copied
}

// inputs are those of a request as they were named; none where all were carried,
// and after its end.
func (l *lent) inputs(id infer.RequestID) []infer.Tensor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests[id].named
}

// forget ends what was lent of a request, if anything was.
func (l *lent) forget(id infer.RequestID) {
	l.mu.Lock()
	inputs := l.requests[id]
	delete(l.requests, id)
	l.mu.Unlock()
	inputs.lease.Release()
}

// lending is a session whose requests name their large inputs, which stay
// here until a worker asks for them.
type lending struct {
	*schedule.GatewaySession
	lent *lent
}

// Submit sends a request.
func (s lending) Submit(r *infer.Request) error { return s.GatewaySession.Submit(s.lent.name(r)) }
