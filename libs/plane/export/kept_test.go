package export_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// keeps runs a test with a worker that has a stream of a gateway.
func keeps(t *testing.T, test func(t *testing.T, m mode, p *plane)) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			p.at.Introduce(workerEpoch)
			p.connect()
			defer func() { p.stop() }()
			test(t, m, p)
		})
	}
}

const keptBytes = 1 << 20

// keep has the worker respond with outputs that it is to keep, and returns what the
// gateway has of it, and the bytes at the worker.
func (p *plane) keep(number uint64) (r *infer.Response, at []byte) {
	p.t.Helper()
	out := p.worker.tensorOf(p.t, "y", keptBytes)
	at, err := out.Data.Bytes()
	if err != nil {
		p.t.Fatal(err)
	}
	p.at.Respond(&infer.Response{Work: work(number), Final: true, Keep: true, Outputs: []infer.Tensor{p.worker.tensorOf(p.t, "small", 10), out}})
	r = p.answer()
	if r.Err != nil || len(r.Outputs) != 2 || r.Kept == 0 {
		p.t.Fatalf("answered by %+v", r)
	}
	if small, kept := r.Outputs[0].Data, r.Outputs[1].Data; small.Place != tensor.Local || kept.Place != tensor.Remote || kept.Holder != workerEpoch {
		p.t.Fatalf("a small output is in place %v and a large one in %v of %d", small.Place, kept.Place, kept.Holder)
	}
	return r, at
}

// awaitKept waits until the worker lends so many buffers.
func (p *plane) awaitKept(n int) {
	p.t.Helper()
	for late := time.Now().Add(patience); p.at.Exports.Len() != n; {
		if time.Now().After(late) {
			p.t.Fatalf("%d buffers are lent, want %d", p.at.Exports.Len(), n)
		}
		pause()
	}
}

// pause lets others run.
func pause() {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	<-timer.C
}

// fetchInputs brings the inputs of a request that reads what a response names.
func fetchInputs(t *testing.T, e *export.Endpoint, r *infer.Response) []infer.Tensor {
	t.Helper()
	request := &infer.Request{Work: work(99), Inputs: append([]infer.Tensor(nil), r.Outputs[1])}
	done := make(chan error, 1)
	e.FetchInputs(request, func(err error) { done <- err })
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the inputs have not come")
	}
	return request.Inputs
}

// What a step gives does not leave its worker: the next step reads it where it lies.
func TestKeptOutputsStayWhereTheyAre(t *testing.T) {
	keeps(t, func(t *testing.T, _ mode, p *plane) {
		before := p.written.Load()
		r, at := p.keep(1)
		if sent := p.written.Load() - before; sent >= keptBytes {
			t.Errorf("%d bytes were sent for a response that keeps %d", sent, keptBytes)
		}
		inputs := fetchInputs(t, p.at, r)
		if got, err := inputs[0].Data.Bytes(); err != nil || &got[0] != &at[0] {
			t.Errorf("the next step reads a copy (%v)", err)
		}
		r.Release()
		p.awaitKept(0)
		inputs[0].Data.Release()
		if used := p.gateway.pool.Stats().InUse; used > keptBytes/2 {
			t.Errorf("the gateway has %d bytes", used)
		}
	})
}

// Another worker fetches what it reads from the one that keeps it.
func TestKeptOutputsAreFetchedByOtherWorkers(t *testing.T) {
	keeps(t, func(t *testing.T, m mode, p *plane) {
		r, at := p.keep(1)
		other := newAsker(t, m)
		inputs := fetchWithStream(t, p, other, r)
		if got, err := inputs[0].Data.Bytes(); err != nil || !bytes.Equal(got, at) {
			t.Errorf("%d bytes came, %v", len(got), err)
		}
		inputs[0].Data.Release()
		r.Release()
		p.awaitKept(0)
	})
}

// fetchWithStream fetches over a stream of another worker's, which ends with the test.
func fetchWithStream(t *testing.T, p *plane, other *asker, r *infer.Response) []infer.Tensor {
	t.Helper()
	s, err := other.Dial(t.Context(), p.peer, &other.progress)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })
	return fetchInputs(t, other.Endpoint, r)
}

// What was let go of while there was no stream is released with the next; what is read
// still is not.
func TestKeptOutputsOutliveStreams(t *testing.T) {
	keeps(t, func(t *testing.T, _ mode, p *plane) {
		first, _ := p.keep(1)
		second, at := p.keep(2)
		p.awaitKept(2)
		p.stop()
		first.Release()
		p.connect()
		p.awaitKept(1)
		inputs := fetchInputs(t, p.at, second)
		if got, err := inputs[0].Data.Bytes(); err != nil || &got[0] != &at[0] {
			t.Errorf("what is read still has moved (%v)", err)
		}
		inputs[0].Data.Release()
		second.Release()
		p.awaitKept(0)
	})
}

// A process that stops waits for those that read what it keeps.
func TestKeptOutputsAreWaitedFor(t *testing.T) {
	keeps(t, func(t *testing.T, _ mode, p *plane) {
		r, _ := p.keep(1)
		ctx, cancel := context.WithCancel(t.Context())
		settled := make(chan bool)
		go func() {
			p.at.Settle(ctx)
			settled <- ctx.Err() == nil
		}()
		inputs := fetchInputs(t, p.at, r)
		select {
		case <-settled:
			t.Error("nothing was waited for")
		default:
		}
		inputs[0].Data.Release()
		r.Release()
		if !<-settled {
			t.Error("the wait did not end with the release")
		}
		cancel()
		p.at.Settle(ctx)
	})
}

// Nobody reads what is kept for a gateway that is gone.
func TestKeptOutputsEndWithTheirGateway(t *testing.T) {
	keeps(t, func(_ *testing.T, _ mode, p *plane) {
		r, _ := p.keep(1)
		p.stop()
		p.at.Gone(gatewayEpoch)
		p.awaitKept(0)
		r.Release()
	})
}

// A response that cannot be sent keeps nothing.
func TestResponsesThatFailKeepNothing(t *testing.T) {
	keeps(t, func(t *testing.T, _ mode, p *plane) {
		p.at.Respond(&infer.Response{
			Work: work(1), Final: true, Keep: true, Outputs: []infer.Tensor{p.worker.tensorOf(t, "y", keptBytes)},
			Parameters: []infer.Parameter{{Key: "\xff", Value: true}},
		})
		a := p.answer()
		if a.Err == nil {
			t.Errorf("answered by %+v", a)
		}
		p.awaitKept(0)
	})
}

// A process that stops waits until the gateway has acknowledged its answers, which a
// gateway does that has a stream. One that is gone acknowledges nothing: what was for it
// is counted as dropped, since it may come back and ask again.
func TestAnswersAreWaitedFor(t *testing.T) {
	const large = 800_000
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			p.attach()
			over, cancel := context.WithCancel(t.Context())
			cancel()
			p.at.Respond(&infer.Response{Work: work(1), Final: true, Outputs: []infer.Tensor{p.worker.tensorOf(t, "y", large)}})
			if u := p.at.Settle(over); u.Responses != 1 || u.Bytes < large || !u.Waits() {
				t.Errorf("%+v is left before the gateway has a stream, want 1 response", u)
			}
			p.connect()
			p.answer().Release()
			if u := p.at.Settle(t.Context()); u.Waits() || u.Dropped != 0 {
				t.Errorf("%+v is left of what the gateway has, want nothing", u)
			}
			p.stop()
			p.at.Respond(&infer.Response{Work: work(2), Final: true})
			p.at.Gone(gatewayEpoch)
			if u := p.at.Settle(t.Context()); u.Waits() || u.Dropped != 1 {
				t.Errorf("%+v is left of what was for a gateway that is gone, want 1 response dropped", u)
			}
		})
	}
}
