package workers_test

import (
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
	"github.com/nereid-serving/nereid/libs/remote/exchange"
	"github.com/nereid-serving/nereid/libs/remote/stream"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/workers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = time.Minute

const gatewayEpoch = 7

type responder chan *infer.Response

func (r responder) Respond(response *infer.Response) { r <- response }

// scheduler is one that orders nothing: the worker only says who it is.
type scheduler struct{ infer.Scheduler }

func (scheduler) Attach(uint64, infer.Held, infer.Executor) {}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing has come")
		panic("unreachable")
	}
}

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Log: zaptest.NewLogger(t)})
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

// serve runs a worker's end on a socket, and ends it with the returned function.
func serve(t *testing.T) (at *exchange.Worker, address string, stop func()) {
	t.Helper()
	at = exchange.NewWorker(exchange.WorkerConfig{ID: "w", Pool: tensor.NewPool(0), Clock: mono.New()})
	path := filepath.Join(t.TempDir(), "s")
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(stream.ServerOptions(nil)...)
	at.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return at, "unix:" + path, func() {
		at.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A worker that is in the bucket has a stream; it is gone when its lease has
// ended and its stream is down, and not before.
func TestStreamsFollowTheBucket(t *testing.T) {
	b := openBus(t)
	at, address, stop := serve(t)
	answers, gone := make(responder, 10), make(chan uint64, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- workers.Run(ctx, workers.Deps{
			Bus: b, Log: zaptest.NewLogger(t),
			Gateway: &exchange.Gateway{
				Identity: exchange.Identity{ID: "g", Epoch: gatewayEpoch}, Offers: exchange.NewOffers(nil), Pool: tensor.NewPool(0), Responder: answers,
			},
			Peer: func(address string) stream.Peer { return stream.Peer{Address: address} },
			Gone: func(worker uint64) { gone <- worker },
		})
	}()

	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	lease, err := bucket.Acquire(t.Context(), bus.Claim[*nereidv1.WorkerValue]{Key: "w", Value: func(epoch uint64) *nereidv1.WorkerValue {
		return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: epoch, Address: address}
	}})
	if err != nil {
		t.Fatal(err)
	}
	at.Inputs(scheduler{}).Attach(lease.Epoch(), infer.Held{}, nil)
	respond := func(number uint64) {
		t.Helper()
		w := infer.Work{Request: infer.RequestID{Origin: gatewayEpoch, Number: number}, Attempt: 1}
		at.Respond(&infer.Response{Work: w, Final: true})
		if r := receive(t, answers); r.Work != w {
			t.Errorf("answer to %v, want %v", r.Work, w)
		}
	}
	respond(1)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	respond(2)
	if len(gone) > 0 {
		t.Error("the worker is gone while its stream is up")
	}
	stop()
	if worker := receive(t, gone); worker != lease.Epoch() {
		t.Errorf("worker %d is gone, want %d", worker, lease.Epoch())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
