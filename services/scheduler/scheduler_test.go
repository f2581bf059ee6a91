package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ref      = infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	instance = infer.InstanceID{Worker: 3}
)

// outside is the gateway and the worker of a scheduler.
type outside struct {
	bus     *bus.Bus
	answers chan error
	orders  chan *infer.Batch
	retired chan infer.InstanceID
}

func (o *outside) Respond(r *infer.Response)             { o.answers <- r.Err }
func (o *outside) Execute(order *infer.Batch)            { o.orders <- order }
func (o *outside) Cancel(infer.BatchID, infer.RequestID) {}
func (o *outside) Retired(id infer.InstanceID)           { o.retired <- id }

// start runs a scheduler on a real bus.
func start(t *testing.T) (*scheduler.Scheduler, *outside, *bus.Bucket[*nereidv1.ModelValue], *prometheus.Registry) {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Lease: time.Hour}) // the process may pause
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := &outside{bus: b, answers: make(chan error, 10), orders: make(chan *infer.Batch, 10), retired: make(chan infer.InstanceID, 10)}
	registry := prometheus.NewRegistry()
	s, err := scheduler.New(scheduler.Default(), scheduler.Deps{Bus: b, Clock: mono.New(), Responder: o, Metrics: registry, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	models, err := bus.NewBucket(b, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		t.Fatal(err)
	}
	return s, o, models, registry
}

func value() *nereidv1.ModelValue {
	return &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Name: "m",
		Config: &inference.ModelConfig{
			Name: "m", Backend: "echo", MaxBatchSize: 4,
			Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
			Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT32, Dims: []int64{2}}},
		},
		Versions: []*nereidv1.ModelVersion{{Version: 1, Generation: 1, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE}},
	}
}

func request(n uint64) *infer.Request {
	return &infer.Request{Work: infer.Work{Request: infer.RequestID{Number: n}, Attempt: 1}, Model: ref, BatchSize: 1}
}

// completion is that of an order of one row, which took no time.
func completion(o *infer.Batch) *infer.InstanceFree {
	now := o.Enqueued[0]
	return &infer.InstanceFree{
		Batch: o.ID, Instance: instance, Outcomes: []infer.Outcome{infer.Succeeded}, Executions: 1, BatchSize: 1, Credits: 1,
		Timing: infer.Timing{Start: now, InputDone: now, InferDone: now, Done: now},
	}
}

func TestServesTheModelsOfTheBucket(t *testing.T) {
	s, o, models, metrics := start(t)
	// The worker is quicker than the bucket: what is submitted waits for it.
	s.Attach(instance.Worker, infer.Held{}, o)
	s.Grant(infer.Grant{Instance: instance, Model: ref, Credits: 1})
	if err := s.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	revision, err := models.Put(t.Context(), "m", value())
	if err != nil {
		t.Fatal(err)
	}
	order := <-o.orders
	if order.ID.Epoch == 0 || order.Requests[0].Work.Epoch != order.ID.Epoch {
		t.Errorf("epoch %d of the order, %d of its request: want that of the scheduler's lease", order.ID.Epoch, order.Requests[0].Work.Epoch)
	}
	began := time.Now()
	s.InstanceFree(completion(order))
	if err := s.Submit(request(2)); err != nil {
		t.Fatal(err)
	}
	order = <-o.orders // by the credit of the first, which is counted by then
	counts, err := s.Statistics(t.Context(), []infer.ModelRef{{Name: "other"}, ref})
	if err != nil || counts[0].Executions != 0 || counts[1].Executions != 1 || counts[1].Success.Count != 1 {
		t.Errorf("statistics are %+v, %v, want those of one request to the second", counts, err)
	}
	if last := counts[1].LastInference; last.After(began) || last.Before(began.Add(-time.Hour)) {
		t.Errorf("last inference was at %v, want before %v", last, began)
	}

	s.InstanceFree(completion(order))
	// The bucket lets go of the model, the worker of its instance.
	if err := models.Delete(t.Context(), "m", revision); err != nil {
		t.Fatal(err)
	}
	s.Retire(instance)
	if id := <-o.retired; id != instance {
		t.Errorf("retired %v, want %v", id, instance)
	}
	if err := s.Submit(request(3)); err != nil {
		t.Fatal(err)
	}
	if err := <-o.answers; errs.Of(err) != errs.NoWorker && errs.Of(err) != errs.ModelNotReady {
		t.Errorf("after the model is gone: %v", err)
	}
	if n, err := testutil.GatherAndCount(metrics, "nereid_scheduler_batch_rows"); err != nil || n > 1 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestTellsItsLoad(t *testing.T) {
	s, o, models, _ := start(t)
	schedulers, err := bus.NewBucket(o.bus, bus.Schedulers, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := models.Put(t.Context(), "m", value()); err != nil {
		t.Fatal(err)
	}
	s.Attach(instance.Worker, infer.Held{}, o)
	s.Grant(infer.Grant{Instance: instance, Model: ref, Credits: 1})
	for n := range uint64(3) {
		if err := s.Submit(request(n + 1)); err != nil {
			t.Fatal(err)
		}
	}
	order := <-o.orders
	told := schedulers.Watch(t.Context())
	until := func(waiting, running uint64) {
		t.Helper()
		for e := range told {
			if v := e.Value; e.Kind == bus.EventPut && v.GetWaiting() == waiting && v.GetRunning() == running && (v.GetLoad() > 0) == (waiting > 0) {
				return
			}
		}
		t.Fatal("the bucket is gone")
	}
	until(2, 1)
	s.InstanceFree(completion(order))
	s.InstanceFree(completion(<-o.orders))
	s.InstanceFree(completion(<-o.orders))
	until(0, 0)
}

func TestStopsTakingRequests(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, err := scheduler.New(scheduler.Default(), scheduler.Deps{
		Bus: b, Clock: mono.New(), Responder: &outside{}, Metrics: prometheus.NewRegistry(), Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	cancel()
	if err := <-ended; err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	if s.Ready() {
		t.Error("ready after the end")
	}
}

func TestSettingsAreChecked(t *testing.T) {
	tests := map[string]func(*scheduler.Config){
		"pool":                  func(c *scheduler.Config) { c.Pool = "" },
		"--max-queued-requests": func(c *scheduler.Config) { c.MaxQueuedRequests = -1 },
		"--max-queued-bytes":    func(c *scheduler.Config) { c.MaxQueuedBytes = -1 },
		"--decision-log-bytes":  func(c *scheduler.Config) { c.DecisionLogBytes = -1 },
	}
	for want, change := range tests {
		c := scheduler.Default()
		change(&c)
		if err := c.Validate(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s with %q", err, errs.ConfigInvalid, want)
		}
	}
	if err := scheduler.Default().Validate(); err != nil {
		t.Error(err)
	}
}
