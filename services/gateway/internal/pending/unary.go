package pending

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Unary waits for a request that must have exactly one response. It is the
// Responder to open the request with.
type Unary struct {
	// first and count are written by Respond, one call at a time, and read
	// after done.
	first *infer.Response
	count int
	done  chan struct{} // has room for the one signal
}

// NewUnary makes a waiter for one request.
func NewUnary() *Unary { return &Unary{done: make(chan struct{}, 1)} }

// Respond keeps the one response.
func (u *Unary) Respond(r *infer.Response) {
	final := r.Final
	switch {
	case r.Err != nil:
		u.drop()
		u.first, u.count = r, 1
	case final && len(r.Outputs) == 0 && u.count > 0:
		r.Release() // the end alone
	case u.count == 0:
		u.first, u.count = r, 1
	default:
		u.count++
		r.Release()
	}
	if final {
		u.done <- struct{}{}
	}
}

// Reset readies the waiter for another request. Wait has said that the last
// one is answered: nobody else knows the waiter any more.
func (u *Unary) Reset() { u.first, u.count = nil, 0 }

// Wait returns the response, which the caller then owns, or the error that
// ended the request; answered is false, and nothing else is returned, when ctx
// is done first, and only then may Wait be called again.
func (u *Unary) Wait(ctx context.Context) (response *infer.Response, answered bool, err error) {
	select {
	case <-u.done:
	default:
		select {
		case <-u.done:
		case <-ctx.Done():
			return nil, false, nil
		}
	}
	switch {
	case u.first.Err != nil:
		return nil, true, u.first.Err
	case u.count != 1:
		u.drop()
		return nil, true, errs.New(errs.ResponseCount, "expected a single response, got %d", u.count)
	}
	return u.first, true, nil
}

// Returned gives the request that came back with the error, to be called once
// after Wait has answered; nil if none did. The caller owns it.
func (u *Unary) Returned() *infer.Request {
	r := u.first.Returned
	u.first.Returned = nil
	return r
}

func (u *Unary) drop() {
	if u.first != nil {
		u.first.Release()
	}
}
