package worker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker"
)

// Without the store nobody hears that a worker leaves.
func TestWorkerWithoutTheStoreStopsAtOnce(t *testing.T) {
	tests := map[string]struct {
		before bool // the store goes away before the worker is told to stop
		want   string
	}{
		"that is away":        {true, "stopping without waiting for the models to be ready elsewhere: NATS is away, and the lease ends by itself"},
		"that goes meanwhile": {false, "waiting no longer for the models to be ready elsewhere: NATS is away, and the lease has ended"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			store, err := bus.Open(t.Context(), bus.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			log, away := firstWarning()
			h := newHarnessOn(t, bus.Config{URL: store.Addr(), Log: log}, func(c *worker.Config) { c.LeaveTimeout = 2 * patience })
			accompany(t, h)
			h.model("a", 1, nil)
			h.applied(h.assign(assigned("a", 1, 1)))
			if !tt.before {
				go h.stop()
				h.await("the word that it leaves", func(v *said) bool { return v != nil && v.GetLeaving() })
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			if <-away; h.bus.Connected() {
				t.Fatal("the bus warns, and is connected")
			}
			stopped := make(chan bool)
			go func() {
				h.stop()
				close(stopped)
			}()
			select {
			case <-stopped:
			case <-time.After(patience):
				t.Error("the worker does not stop")
			}
			if h.logs.FilterMessage(tt.want).Len() != 1 {
				t.Errorf("the log does not say %q", tt.want)
			}
		})
	}
}

// firstWarning returns a log, and a channel that closes with its first warning: a
// bus warns when its connection is lost.
func firstWarning() (*zap.Logger, <-chan struct{}) {
	core, _ := observer.New(zap.WarnLevel)
	warned := make(chan struct{})
	closeOnce := sync.OnceFunc(func() { close(warned) })
	return zap.New(core, zap.Hooks(func(zapcore.Entry) error { closeOnce(); return nil })), warned
}

// accompany has another worker hold a lease.
func accompany(t *testing.T, h *harness) {
	t.Helper()
	lease, err := h.workers.Acquire(t.Context(), bus.Claim[*nereidv1.WorkerValue]{
		Key: "another", TTL: patience, Value: func(epoch uint64) *nereidv1.WorkerValue {
			return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "another", Epoch: epoch}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
}
