package workers_test

import (
	"cmp"
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/workers"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout bounds what a test waits for; no test measures it.
const timeout = time.Minute

const (
	gatewayEpoch  = 7
	responseBytes = tensor.MappedThreshold
)

type responder chan *infer.Response

func (r responder) Respond(response *infer.Response) { r <- response }

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(timeout):
		t.Fatal("nothing has come")
		panic("unreachable")
	}
}

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Listen: "127.0.0.1:0", Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// endpoint is a worker's end on a socket.
type endpoint struct {
	*export.Endpoint
	pool *tensor.Pool
	path string
}

func newEndpoint(t *testing.T) *endpoint {
	pool := tensor.NewPool(0)
	at := export.NewEndpoint(export.Config{ID: "w", Pool: pool, Clock: mono.New()})
	t.Cleanup(at.Close)
	return &endpoint{at, pool, filepath.Join(t.TempDir(), "s")}
}

func (e *endpoint) address() string { return "unix:" + e.path }

// serve takes streams until the test calls what it returns.
func (e *endpoint) serve(t *testing.T) (stop func()) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", e.path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(link.ServerOptions(nil, nil)...)
	e.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// follow runs a connector until stop is called.
func follow(t *testing.T, b *bus.Bus, responses responder, lost chan<- uint64) (k *workers.Connector, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	gateway := export.NewEndpoint(export.Config{ID: "g", Pool: tensor.NewPool(0), Responder: responses})
	gateway.Introduce(gatewayEpoch)
	k = workers.New(workers.Deps{
		Bus: b, Log: zaptest.NewLogger(t),
		Endpoint: gateway,
		Peer:     func(address string) link.Peer { return link.Peer{Address: address} },
		Lost:     func(worker uint64) { lost <- worker },
	})
	go func() { ended <- k.Run(ctx) }()
	return k, func() {
		cancel()
		gateway.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// long is what a worker's lease lives without a renewal: a worker without one gets no
// stream, and a starved test pauses. One of brief ends soon.
const long, brief = 2 * timeout, time.Second

// acquire takes the worker's lease, of the incarnation with this epoch; 0 is a new one.
func acquire(t *testing.T, b *bus.Bus, of uint64, address string, lives time.Duration) *bus.Lease[*nereidv1.WorkerValue] {
	t.Helper()
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	lease, err := bucket.Acquire(t.Context(), bus.Claim[*nereidv1.WorkerValue]{Key: "w", TTL: lives, Value: func(epoch uint64) *nereidv1.WorkerValue {
		return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: cmp.Or(of, epoch), Address: address}
	}, Replace: func(*nereidv1.WorkerValue) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// respond sends a response from the worker and waits until the gateway has it.
func (e *endpoint) respond(t *testing.T, number uint64, responses responder) {
	t.Helper()
	b, err := e.pool.Get(responseBytes)
	if err != nil {
		t.Fatal(err)
	}
	w := infer.Work{Request: infer.RequestID{Origin: gatewayEpoch, Number: number}, Attempt: 1}
	e.Respond(&infer.Response{Work: w, Final: true, Outputs: []infer.Tensor{
		{Name: "y", Datatype: tensor.Uint8, Shape: tensor.Shape{responseBytes}, Data: tensor.InBuffer(b, 0, responseBytes)},
	}})
	for {
		r := receive(t, responses)
		r.Release()
		if r.Work == w {
			return
		}
	}
}

// A worker in the bucket has a stream; it is lost when its lease has
// ended and its stream is down, and not before.
func TestStreamsFollowTheBucket(t *testing.T) {
	b := openBus(t)
	at := newEndpoint(t)
	cut := at.serve(t)
	responses, lost := make(responder, 10), make(chan uint64, 10)
	k, stop := follow(t, b, responses, lost)
	defer stop()

	lease := acquire(t, b, 0, at.address(), long)
	at.Introduce(lease.Epoch())
	at.respond(t, 1, responses)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	at.respond(t, 2, responses)
	if len(lost) > 0 {
		t.Error("the worker counts as lost while its stream is up")
	}
	connected := k.Connected(lease.Epoch())
	if connected == nil || k.Connected(lease.Epoch()+1) != nil {
		t.Error("the connector misreports its streams")
	}
	cut()
	receive(t, connected)
	if worker := receive(t, lost); worker != lease.Epoch() {
		t.Errorf("worker %d is lost, want %d", worker, lease.Epoch())
	}
}

// A suspended worker that returns renews its lease and continues
// its stream: it retains no acknowledged response.
func TestWorkerComesBack(t *testing.T) {
	b := openBus(t)
	at := newEndpoint(t)
	responses, lost := make(responder, 10), make(chan uint64, 10)
	_, stop := follow(t, b, responses, lost)
	defer stop()

	var worker, number uint64
	for range 3 {
		cut := at.serve(t)
		alone, err := bus.Open(t.Context(), bus.Config{URL: b.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		lease := acquire(t, alone, worker, at.address(), long)
		worker = cmp.Or(worker, lease.Epoch())
		at.Introduce(worker)
		for range 10 {
			number++
			at.respond(t, number, responses)
		}
		acquire(t, alone, worker, at.address(), brief)
		if err := alone.Close(); err != nil { // so that the lease ends by itself
			t.Fatal(err)
		}
		for end := time.Now().Add(timeout); at.pool.Stats().InUse > 0; <-time.After(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the worker retains %d bytes of acknowledged responses", at.pool.Stats().InUse)
			}
		}
		cut()
		if got := receive(t, lost); got != worker {
			t.Errorf("worker %d is lost, want %d", got, worker)
		}
	}
}
