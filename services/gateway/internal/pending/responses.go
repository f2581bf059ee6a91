package pending

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Budget bounds the bytes of the responses that wait for their client.
type Budget interface {
	// Charge reserves the n bytes of a response, or returns an error.
	Charge(n int64, final bool) error
}

// Responses are the responses of one request in their order, from the table to
// the one goroutine that reads them. They are the Responder to open the request
// with, and may be used again after the final one was read.
type Responses struct {
	// Budget is charged with each response before the reader has it; the reader
	// refunds it. A response that it refuses becomes its error. It may be nil.
	Budget Budget

	arrived chan struct{} // has room for one signal

	mu    sync.Mutex
	queue []*infer.Response // guarded by mu
	read  int               // responses of queue that are read; guarded by mu
}

var _ infer.Responder = (*Responses)(nil)

// Open makes r ready for a request that has not been opened yet.
func (r *Responses) Open() {
	if r.arrived == nil {
		r.arrived = make(chan struct{}, 1)
	}
}

// Respond queues a response.
func (r *Responses) Respond(p *infer.Response) {
	if n := p.OutputBytes(); n > 0 && r.Budget != nil {
		if err := r.Budget.Charge(n, p.Final); err != nil {
			refused := &infer.Response{Work: p.Work, Final: p.Final, Err: err}
			p.Release()
			p = refused
		}
	}
	r.mu.Lock()
	r.queue = append(r.queue, p)
	r.mu.Unlock()
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

// Next returns the next response, which the caller then owns, or nil when ctx is
// done first.
func (r *Responses) Next(ctx context.Context) *infer.Response {
	for {
		if p := r.pop(); p != nil {
			return p
		}
		select {
		case <-r.arrived: // or a signal of the request before
		case <-ctx.Done():
			return r.pop()
		}
	}
}

func (r *Responses) pop() *infer.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read == len(r.queue) {
		return nil
	}
	p := r.queue[r.read]
	r.queue[r.read] = nil
	if r.read++; r.read == len(r.queue) {
		r.queue, r.read = r.queue[:0], 0
	}
	return p
}
