package workers_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/workers"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// fetched is the outcome of a fetch.
type fetched struct {
	data []byte
	err  error
}

// asker is a worker that fetches from others.
type asker struct {
	*export.Endpoint
	connector *workers.Connector
}

// newAsker runs one until the test's end. Its streams are idle after the time given.
func newAsker(t *testing.T, b *bus.Bus, idle time.Duration) *asker {
	t.Helper()
	a := &asker{}
	a.Endpoint = export.NewEndpoint(export.Config{
		ID: "asker", Pool: tensor.NewPool(0), Reach: func(worker uint64) { a.connector.Reach(worker) }, Idle: idle,
	})
	a.Introduce(1)
	a.connector = workers.New(workers.Deps{
		Bus: b, Log: zaptest.NewLogger(t), Endpoint: a.Endpoint, OnDemand: true, Lost: a.Gone,
		Peer: func(address string) link.Peer { return link.Peer{Address: address} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.connector.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		a.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *asker) fetch(named tensor.Ref) <-chan fetched {
	outcome := make(chan fetched, 1)
	a.Fetch(named, func(local tensor.Ref, err error) {
		data, _ := local.Bytes()
		outcome <- fetched{bytes.Clone(data), err}
		local.Release()
	})
	return outcome
}

// lend lends a tensor of a worker's incarnation.
func (e *endpoint) lend(t *testing.T, incarnation uint64) (named tensor.Ref, lease export.Lease) {
	t.Helper()
	in := []infer.Tensor{{Data: tensor.InHeap(bytes.Repeat([]byte("tensor"), 1<<17))}}
	tensors, lease := e.Exports.Lend(in, incarnation)
	return tensors[0].Data, lease
}

// A worker has a stream to another as long as it fetches from it, from when the
// bucket names that one.
func TestStreamsOnDemand(t *testing.T) {
	b := openBus(t)
	at := newEndpoint(t)
	defer at.serve(t)()
	a := newAsker(t, b, 50*time.Millisecond)

	lease := acquire(t, b, 0, at.address(), long)
	at.Introduce(lease.Epoch())
	named, lent := at.lend(t, lease.Epoch())
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for known := true; known; <-time.After(time.Millisecond) { // until the connector has heard of it all
		_, known = a.connector.Owner(lease.Epoch())
	}
	outcome := a.fetch(named)
	defer acquire(t, b, lease.Epoch(), at.address(), long).Release(t.Context()) //nolint:errcheck // the test has ended
	for range 3 {
		if got := receive(t, outcome); got.err != nil || !bytes.Equal(got.data, bytes.Repeat([]byte("tensor"), 1<<17)) {
			t.Fatalf("%d bytes came, %v", len(got.data), got.err)
		}
		for end := time.Now().Add(timeout); a.connector.Connected(lease.Epoch()) != nil; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("an idle stream stays")
			}
		}
		outcome = a.fetch(named)
	}
	receive(t, outcome)
	lent.Release()
	if got := receive(t, a.fetch(named)); errs.Of(got.err) != errs.TransferFailed {
		t.Errorf("a tensor that is lent no more: %v", got.err)
	}
}

// A fetch fails when the lease of the worker that holds the tensor ends, and not
// before.
func TestFetchEndsWithTheLease(t *testing.T) {
	b := openBus(t)
	at := newEndpoint(t)
	a := newAsker(t, b, timeout)
	lease := acquire(t, b, 0, at.address(), long)
	at.Introduce(lease.Epoch())
	named, lent := at.lend(t, lease.Epoch())
	defer lent.Release()

	stop := at.serve(t)
	if got := receive(t, a.fetch(named)); got.err != nil {
		t.Error(got.err)
	}
	stop()
	waiting := a.fetch(named)
	select {
	case got := <-waiting:
		t.Fatalf("a fetch from a worker that holds its lease ended with %v", got.err)
	default:
	}
	stop = at.serve(t)
	if got := receive(t, waiting); got.err != nil {
		t.Errorf("a fetch over the next stream: %v", got.err)
	}
	stop()
	waiting = a.fetch(named)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, waiting); errs.Of(got.err) != errs.TransferFailed {
		t.Errorf("a fetch from a worker whose lease has ended: %v", got.err)
	}
}
