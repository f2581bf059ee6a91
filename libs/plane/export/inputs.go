package export

import (
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// fetchTimeout is how long a request without a deadline waits for its inputs.
const fetchTimeout = 30 * time.Second

// FetchInputs makes the inputs of a request readable. It calls done once, immediately or later, from any goroutine:
// with an error if the inputs cannot be fetched by the request's deadline, or with the error passed to cancel, which
// has no effect later. Until then FetchInputs owns the request.
func (e *Endpoint) FetchInputs(r *infer.Request, done func(error)) (cancel func(error)) {
	a := &assembly{pool: e.config.Pool, request: r, done: done, missing: 1} // until all have been asked for
	for i := range r.Inputs {
		if place := r.Inputs[i].Data.Place; place == tensor.Arena || place == tensor.Remote {
			a.ask(e, i)
		}
	}
	a.bound(e.config.Clock.Now())
	a.got(-1, tensor.Ref{}, nil)
	return a.fail
}

// assembly is a request whose inputs are being fetched.
type assembly struct {
	pool    *tensor.Pool
	request *infer.Request
	done    func(error)

	mu      sync.Mutex
	missing int         // inputs; guarded by mu
	over    bool        // guarded by mu
	abandon []func()    // cancel what is in flight; guarded by mu
	timer   *time.Timer // guarded by mu
}

func (a *assembly) ask(e *Endpoint, input int) {
	named := a.request.Inputs[input].Data
	a.mu.Lock()
	a.missing++
	over := a.over
	a.mu.Unlock()
	if over {
		return
	}
	abandon := e.Fetch(named, func(local tensor.Ref, err error) {
		in := &a.request.Inputs[input]
		// The gateway has checked the elements of its own tensors.
		if err == nil && in.Datatype == tensor.Bytes && named.Holder != a.request.Work.Request.Origin {
			err = a.checkStrings(in, &local)
		}
		a.got(input, local, err)
	})
	a.mu.Lock()
	a.abandon = append(a.abandon, abandon)
	over = a.over
	a.mu.Unlock()
	if over {
		abandon()
	}
}

// checkStrings refuses a BYTES tensor whose elements do not match its shape: in a batch it would shift the elements
// of others. It copies the tensor first, so that the holder cannot change what was checked.
func (a *assembly) checkStrings(in *infer.Tensor, local *tensor.Ref) error {
	data, err := local.Bytes()
	if err != nil {
		return err
	}
	if local.Mapped() {
		b, err := a.pool.Get(len(data))
		if err != nil {
			return err
		}
		copy(b.Bytes(), data)
		data = b.Bytes()
		local.Release()
		*local = tensor.InBuffer(b, 0, int64(len(data)))
	}
	want, _ := in.Shape.Elements()
	got, err := tensor.CountBytes(data, want)
	if err != nil || got != want {
		local.Release()
		return errs.New(errs.TensorDataInvalid, "expected %d string elements for inference input '%s', got %d of %d bytes: each is its length in 4 bytes and as many bytes",
			want, in.Name, got, len(data))
	}
	return nil
}

// bound ends the wait at the request's deadline.
func (a *assembly) bound(now mono.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.missing == 1 {
		return
	}
	wait, err := fetchTimeout, errs.New(errs.TransferFailed, "an input did not reach the worker within %v", fetchTimeout)
	if left, bounded := a.request.Deadline.Left(now); bounded && left < wait {
		wait, err = left, errs.New(errs.DeadlineQueue, "the deadline passed before the inputs had reached the worker")
	}
	a.timer = time.AfterFunc(wait, func() { a.fail(err) })
}

// got accepts the bytes of an input.
func (a *assembly) got(input int, local tensor.Ref, err error) {
	if err != nil {
		a.fail(err)
		return
	}
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		local.Release()
		return
	}
	if input >= 0 {
		a.request.Inputs[input].Data = local
	}
	a.missing--
	over := a.missing == 0
	if over {
		a.end()
	}
	a.mu.Unlock()
	if over {
		a.done(nil)
	}
}

// fail gives up the request.
func (a *assembly) fail(err error) {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	abandon := a.end()
	a.mu.Unlock()
	for _, f := range abandon {
		f()
	}
	a.done(err)
}

// end must be called once, with the lock held. It returns how to cancel what is in flight.
func (a *assembly) end() []func() {
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
	return a.abandon
}
