package attach

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

// A scheduler whose host has vanished neither answers nor refuses. The worker
// leaves it, whether it dials or has a session, when another holds the pool.
func TestVanishedSchedulerHoldsNobodyUp(t *testing.T) {
	for name, answers := range map[string]bool{"while it is dialed": false, "in a session": true} {
		t.Run(name, func(t *testing.T) {
			b := openBus(t)
			dialed := make(chan string, 100)
			a := New(Deps{
				Finder: control.NewFinder(b, control.PoolRole("default")), Clock: mono.New(), Lease: time.Hour, Log: zap.NewNop(), Batches: batches.New(),
				Dial: func(ctx context.Context, address string, _ uint64, held infer.Held, _ infer.Executor) (Session, error) {
					dialed <- address
					if answers && address == "vanished" {
						return &silent{session: session{epoch: held.Epoch}, done: make(chan struct{})}, nil
					}
					<-ctx.Done()
					return nil, errs.From(context.Cause(ctx))
				},
			})
			a.Attach(slot.Worker, infer.Held{}, &scene{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- a.Run(ctx) }()
			holds(t, b, "vanished")
			await(t, dialed, "vanished")
			holds(t, b, "next")
			await(t, dialed, "next")
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// silent is a session whose peer says nothing any more.
type silent struct {
	session
	done chan struct{}
}

func (x *silent) Close()                { close(x.done) }
func (x *silent) Done() <-chan struct{} { return x.done }

// holds has the scheduler at the address hold the pool, after whoever does.
func holds(t *testing.T, b *bus.Bus, address string) {
	t.Helper()
	bucket, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	_, err = bucket.Acquire(t.Context(), bus.Claim[*nereidv1.LeaderValue]{
		Key: control.PoolRole("default"), Replace: func(*nereidv1.LeaderValue) bool { return true },
		Value: func(epoch uint64) *nereidv1.LeaderValue {
			return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: address, Epoch: epoch, Address: address}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, dialed <-chan string, want string) {
	t.Helper()
	for timeout := time.After(patience); ; {
		select {
		case address := <-dialed:
			if address == want {
				return
			}
		case <-timeout:
			t.Fatalf("%s is not dialed", want)
		}
	}
}

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Lease: patience, Log: zaptest.NewLogger(t)})
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
