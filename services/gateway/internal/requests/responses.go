package requests

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// A client that does not read may leave this many responses of one request waiting, or this many bytes.
// Backends that wait for their clients give far fewer.
const (
	maxUnread      = 1024
	maxUnreadBytes = 64 << 20
)

// Budget bounds the bytes of responses that wait for their client.
type Budget interface {
	// Charge reserves the n bytes of a response, or returns an error.
	Charge(n int64, final bool) error
	// Refund releases the n bytes of a response that nobody reads.
	Refund(n int64)
}

// Responses queues the responses of one request, in order, between the table and the single goroutine that
// reads them. It is the Receiver to open the request with. It may be reused after the final response was read.
type Responses struct {
	// Budget is charged for each response before the reader gets it; the reader refunds it. If Budget refuses a
	// response, its error ends the request. It may be nil.
	Budget Budget

	arrived chan struct{} // buffers one signal

	mu    sync.Mutex
	queue []*infer.Response // guarded by mu
	read  int               // how many responses of queue have been read; guarded by mu
	bytes int64             // size of the unread ones; guarded by mu
}

var _ Receiver = (*Responses)(nil)

// Open prepares r for a request that is about to be opened.
func (r *Responses) Open() {
	if r.arrived == nil {
		r.arrived = make(chan struct{}, 1)
	}
}

// Receive queues a response. If the budget refuses it, or the client has left too much unread, it ends the
// request: the error replaces all unread responses.
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

// unread returns the error for a request with too many unread responses or bytes, or nil.
func unread(responses int, bytes int64) error {
	if responses < maxUnread && bytes < maxUnreadBytes {
		return nil
	}
	return errs.New(errs.ResponsesUnread, "the client has left %d responses of %d bytes unread: of one request %d responses may wait for it, or %d bytes",
		responses, bytes, maxUnread, maxUnreadBytes)
}

// dropLocked releases the unread responses.
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

// Next returns the next response, or nil if ctx is done first. The caller owns it.
func (r *Responses) Next(ctx context.Context) *infer.Response {
	for {
		if p := r.TryNext(); p != nil {
			return p
		}
		select {
		case <-r.arrived: // or a signal left over from the previous request
		case <-ctx.Done():
			return r.TryNext()
		}
	}
}

// Arrived returns a channel that has a signal when a response may have arrived.
func (r *Responses) Arrived() <-chan struct{} { return r.arrived }

// TryNext returns the next response, or nil if none has arrived. The caller owns it.
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
