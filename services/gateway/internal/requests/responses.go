package requests

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Of a request whose client does not read, so many responses wait, or responses of
// so many bytes. Backends that wait for their clients give far fewer.
const (
	maxUnread      = 1024
	maxUnreadBytes = 64 << 20
)

// Budget bounds the bytes of the responses that wait for their client.
type Budget interface {
	// Charge reserves the n bytes of a response, or returns an error.
	Charge(n int64, final bool) error
	// Refund returns the n bytes of a response that nobody reads.
	Refund(n int64)
}

// Responses are the responses of one request in their order, from the table to
// the one goroutine that reads them. They are the Receiver to open the request
// with, and may be used again after the final one was read.
type Responses struct {
	// Budget is charged with each response before the reader has it; the reader
	// refunds it. A response that it refuses ends the request with its error. It may
	// be nil.
	Budget Budget

	arrived chan struct{} // has room for one signal

	mu    sync.Mutex
	queue []*infer.Response // guarded by mu
	read  int               // responses of queue that are read; guarded by mu
	bytes int64             // of those that are not; guarded by mu
}

var _ Receiver = (*Responses)(nil)

// Open makes r ready for a request that has not been opened yet.
func (r *Responses) Open() {
	if r.arrived == nil {
		r.arrived = make(chan struct{}, 1)
	}
}

// Receive queues a response. Where the budget refuses it, or the client has left too
// many unread, it ends the request: the error takes the place of all that is unread.
func (r *Responses) Receive(p *infer.Response) (last bool) {
	last = r.receive(p)
	select {
	case r.arrived <- struct{}{}:
	default:
	}
	return last
}

func (r *Responses) receive(p *infer.Response) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := p.OutputBytes()
	var err error
	if !p.Final {
		err = unread(len(r.queue)-r.read, r.bytes)
	}
	if err == nil && n > 0 && r.Budget != nil {
		err = r.Budget.Charge(n, p.Final)
	}
	if err != nil {
		failure := infer.Fail(p.Work, err)
		failure.Execution, failure.Abandoned = p.Execution, !p.Final
		p.Release()
		r.dropLocked()
		p, n = failure, 0
	}
	r.queue, r.bytes = append(r.queue, p), r.bytes+n
	return p.Final
}

// unread returns the error of a request that has left so much unread.
func unread(responses int, bytes int64) error {
	if responses < maxUnread && bytes < maxUnreadBytes {
		return nil
	}
	return errs.New(errs.ResponsesUnread, "the client has left %d responses of %d bytes unread: of one request %d responses may wait for it, or %d bytes",
		responses, bytes, maxUnread, maxUnreadBytes)
}

// dropLocked releases the responses that are unread.
func (r *Responses) dropLocked() {
	for _, p := range r.queue[r.read:] {
		p.Release()
	}
	clear(r.queue)
	if r.Budget != nil {
		r.Budget.Refund(r.bytes)
	}
	r.queue, r.read, r.bytes = r.queue[:0], 0, 0
}

// Next returns the next response, which the caller then owns, or nil when ctx is
// done first.
func (r *Responses) Next(ctx context.Context) *infer.Response {
	for {
		if p := r.TryNext(); p != nil {
			return p
		}
		select {
		case <-r.arrived: // or a signal of the request before
		case <-ctx.Done():
			return r.TryNext()
		}
	}
}

// Arrived has a signal when a response may have come.
func (r *Responses) Arrived() <-chan struct{} { return r.arrived }

// TryNext returns the next response, which the caller then owns, or nil where none
// has come.
func (r *Responses) TryNext() *infer.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read == len(r.queue) {
		return nil
	}
	p := r.queue[r.read]
	r.bytes -= p.OutputBytes()
	r.queue[r.read] = nil
	if r.read++; r.read == len(r.queue) {
		r.queue, r.read = r.queue[:0], 0
	}
	return p
}
