package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

// observed waits until the gateway reflects the bucket workers up to a revision.
func (h *harness) observed(revision uint64) {
	h.t.Helper()
	bucket, err := bus.NewBucket(h.bus, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		h.t.Fatal(err)
	}
	for e := range bucket.Watch(h.t.Context()) {
		if e.Value.GetWorkersRevision() >= revision {
			return
		}
	}
	h.t.Fatal("the gateway observes no more")
}

// A worker whose lease expires while its stream is up has only lost the store: its instances stay ready until
// the stream ends too.
func TestWorkerThatIsCutOffFromTheStoreServesOn(t *testing.T) {
	b := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	stream := make(chan struct{})
	h := startWith(t, gateway.Deps{Bus: b, Connected: func(worker uint64) <-chan struct{} {
		if worker == 1 {
			return stream
		}
		return nil
	}}, nil)
	store, err := bus.Open(t.Context(), bus.Config{URL: b.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	workers, err := bus.NewBucket(store, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	told, err := bus.NewBucket(h.bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	// On a starved machine the lease may end before its store is closed.
	events := told.Watch(t.Context())
	own := bus.Claim[*nereidv1.WorkerValue]{Key: "w", TTL: time.Second, Value: func(uint64) *nereidv1.WorkerValue {
		return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: "w", Epoch: 1}
	}}
	if _, err := workers.Acquire(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	revision := put(h, bus.Models, "m", model(1))
	put(h, bus.Instances, "w/m", runs(nereidv1.State_STATE_READY, 1))
	hold(h, bus.Leaders, "registry", &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "r", ModelsRevision: revision})
	h.eventually(http.StatusOK, "/v2/health/ready")

	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Kind == bus.EventDelete {
			h.observed(e.Revision)
			break
		}
	}
	if status, body := h.do(http.MethodGet, "/v2/health/ready", ""); status != http.StatusOK {
		t.Errorf("without the lease the gateway is not ready: %d %s", status, body)
	}
	close(stream)
	h.eventually(http.StatusBadRequest, "/v2/health/ready")
}
