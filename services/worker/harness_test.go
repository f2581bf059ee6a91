package worker_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

// harness is a running worker between a real store, a recording scheduler and
// a recording gateway.
type harness struct {
	t           *testing.T
	bus         *bus.Bus
	models      *bus.Bucket[*nereidv1.ModelValue]
	assignments *bus.Bucket[*nereidv1.AssignmentValue]
	workers     *bus.Bucket[*nereidv1.WorkerValue]
	instances   *bus.Bucket[*nereidv1.InstancesValue]
	parts       map[string]bool // the models that are assigned
	written     uint64          // the revision of the last model
	worker      *worker.Worker
	metrics     *prometheus.Registry
	pool        *tensor.Pool
	scheduler   *scheduler
	responses   chan *infer.Response
	logs        *observer.ObservedLogs
	ended       <-chan error // what Run returned
	stop        func()       // ends the worker and waits for it; may be called twice
}

func newHarness(t *testing.T, edit ...func(*worker.Config)) *harness {
	t.Helper()
	return newHarnessOn(t, bus.Config{Lease: patience}, edit...)
}

func newHarnessOn(t *testing.T, at bus.Config, edit ...func(*worker.Config)) *harness {
	t.Helper()
	b, err := bus.Open(t.Context(), at)
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
	h := &harness{
		t: t, bus: b,
		models:      bucket[*nereidv1.ModelValue](t, b, bus.Models),
		assignments: bucket[*nereidv1.AssignmentValue](t, b, bus.Assignments),
		workers:     bucket[*nereidv1.WorkerValue](t, b, bus.Workers),
		instances:   bucket[*nereidv1.InstancesValue](t, b, bus.Instances),
		parts:       make(map[string]bool),
		metrics:     prometheus.NewRegistry(),
		pool:        tensor.NewPool(0),
		scheduler:   &scheduler{news: make(chan struct{}, 1)},
		responses:   make(chan *infer.Response, 16),
	}
	h.start(edit)
	return h
}

// another runs a second worker with the same id and returns how to end it.
func (h *harness) another() (stop func()) {
	second := *h
	second.metrics, second.scheduler = prometheus.NewRegistry(), &scheduler{news: make(chan struct{}, 1)}
	second.start(nil)
	return second.stop
}

func (h *harness) start(edit []func(*worker.Config)) {
	c := worker.Default()
	c.ID, c.ReloadLinger, c.OnnxRuntimeLibrary = "w1", 10*time.Millisecond, "/nowhere/libonnxruntime.so"
	for _, change := range edit {
		change(&c)
	}
	log, logs := observer.New(zap.InfoLevel)
	h.logs = logs
	nobody := export.NewEndpoint(export.Config{}).Caller() // models call others in other tests
	w, err := worker.New(c, worker.Deps{
		Bus: h.bus, Scheduler: h.scheduler, Responder: h, Calls: nobody, Control: nobody, Clock: mono.New(), Log: zap.New(log), Metrics: h.metrics, Pool: h.pool,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.worker = w
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ended := make(chan error, 1)
	h.ended = ended
	go func() {
		err := w.Run(ctx)
		ended <- err
		done <- err
	}()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil && errs.Of(err) != errs.AlreadyExists {
			h.t.Errorf("Run = %v", err)
		}
	})
	h.t.Cleanup(h.stop)
}

func bucket[T nereidv1.Value](t *testing.T, b *bus.Bus, name string) *bus.Bucket[T] {
	t.Helper()
	list, err := bus.NewBucket(b, name, bus.Values[T]())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (h *harness) Respond(r *infer.Response) { h.responses <- r }

// model writes an echo model with one version of the given generation.
func (h *harness) model(name string, generation uint64, edit func(*nereidv1.ModelValue)) uint64 {
	h.t.Helper()
	v := &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Name: name, Url: "file:///models/" + name,
		Config: &inference.ModelConfig{
			Name: name, Backend: "echo", MaxBatchSize: 8,
			Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT8, Dims: []int64{4}}},
			Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT8, Dims: []int64{4}}},
		},
		Versions: []*nereidv1.ModelVersion{{
			Version: 1, Generation: generation, Url: "file:///models/" + name + "/1",
			Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE,
		}},
	}
	if edit != nil {
		edit(v)
	}
	revision, err := h.models.Put(h.t.Context(), name, v)
	if err != nil {
		h.t.Fatal(err)
	}
	h.written = revision
	return revision
}

// assign writes the worker's assignment, made by the models written so far,
// and returns its revision.
func (h *harness) assign(versions ...*nereidv1.AssignedVersion) uint64 {
	h.t.Helper()
	return h.assignBy(h.written, versions...)
}

// assignBy writes what the worker should run, as a leader who knew a revision of
// the models: each model's assignment and then the head.
func (h *harness) assignBy(models uint64, versions ...*nereidv1.AssignedVersion) uint64 {
	h.t.Helper()
	byModel := make(map[string][]*nereidv1.AssignedVersion)
	for name := range h.parts {
		byModel[name] = nil
	}
	for _, v := range versions {
		name := v.GetModel().GetName()
		byModel[name] = append(byModel[name], v)
		h.parts[name] = true
	}
	for name, versions := range byModel {
		h.put(name, models, versions)
	}
	return h.put("", models, nil)
}

func (h *harness) put(model string, models uint64, versions []*nereidv1.AssignedVersion) uint64 {
	h.t.Helper()
	v := &nereidv1.AssignmentValue{Schema: nereidv1.Schema, WorkerId: "w1", ModelsRevision: models, Versions: versions}
	revision, err := h.assignments.Put(h.t.Context(), bus.OwnedKey("w1", model), v)
	if err != nil {
		h.t.Fatal(err)
	}
	return revision
}

// assigned asks for so many instances of version 1 of a model.
func assigned(name string, generation uint64, count uint32) *nereidv1.AssignedVersion {
	return &nereidv1.AssignedVersion{
		Model:  &nereidv1.ModelRef{Name: name, Version: 1, Generation: generation},
		Groups: []*nereidv1.AssignedGroup{{Name: name + "_0", Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU, Count: count}},
	}
}

// said is what the worker says of itself, and of what it runs in the order of
// models.
type said struct {
	*nereidv1.WorkerValue
	versions []*nereidv1.WorkerVersion
}

// GetVersions gives what counts: under the epoch of the lease.
func (s *said) GetVersions() []*nereidv1.WorkerVersion {
	if s == nil {
		return nil
	}
	return s.versions
}

// GetAssignmentRevision is 0 of no worker.
func (s *said) GetAssignmentRevision() uint64 {
	if s == nil {
		return 0
	}
	return s.WorkerValue.GetAssignmentRevision()
}

// await waits until what the worker says is as wanted and returns it; nil
// stands for a worker that is gone.
func (h *harness) await(what string, done func(*said) bool) *said {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	leases, parts := h.workers.Watch(ctx), h.instances.Watch(ctx)
	for {
		select {
		case _, ok := <-leases:
			if !ok {
				h.t.Fatalf("no %s; the last is %v", what, h.said())
			}
		case <-parts:
		}
		if last := h.said(); done(last) {
			return last
		}
	}
}

// said reads what the worker says, first of itself: so what it runs is at least
// what it says there to have reached.
func (h *harness) said() *said {
	h.t.Helper()
	ctx := context.Background()
	lease, err := h.workers.Get(ctx, "w1")
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		h.t.Fatal(err)
	}
	last := &said{WorkerValue: lease.Value}
	for _, name := range slices.Sorted(maps.Keys(h.parts)) { // a list of the keys may lack one that is rewritten meanwhile
		part, err := h.instances.Get(ctx, bus.OwnedKey("w1", name))
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			h.t.Fatal(err)
		}
		if err == nil && part.Value.GetEpoch() == lease.Value.GetEpoch() {
			last.versions = append(last.versions, part.Value.GetVersions()...)
		}
	}
	return last
}

// applied waits until the assignments of that revision are in their final state.
func (h *harness) applied(assignment uint64) *said {
	h.t.Helper()
	return h.await("applied assignment", func(v *said) bool { return v.GetAssignmentRevision() >= assignment })
}

// scheduler records what a worker tells it, and retires what it is asked to
// at once unless it holds back.
type scheduler struct {
	mu       sync.Mutex
	worker   uint64                           // attached; guarded by mu
	executor infer.Executor                   // guarded by mu
	open     map[infer.InstanceID]infer.Grant // granted and not retired; guarded by mu
	retired  []infer.InstanceID               // guarded by mu
	done     []*infer.InstanceFree            // guarded by mu
	holdBack bool                             // guarded by mu
	news     chan struct{}
}

func (s *scheduler) Attach(worker uint64, _ infer.Held, e infer.Executor) {
	defer s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker, s.executor, s.open = worker, e, make(map[infer.InstanceID]infer.Grant)
}

func (s *scheduler) Detach(worker uint64) {
	defer s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker == worker {
		s.worker, s.executor = 0, nil
	}
}

func (s *scheduler) Grant(g infer.Grant) {
	defer s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	g.Credits += s.open[g.Instance].Credits
	s.open[g.Instance] = g
}

func (s *scheduler) Retire(id infer.InstanceID) {
	defer s.tell()
	s.mu.Lock()
	s.retired = append(s.retired, id)
	delete(s.open, id)
	executor, answer := s.executor, !s.holdBack
	s.mu.Unlock()
	if answer {
		executor.Retired(id)
	}
}

func (s *scheduler) InstanceFree(c *infer.InstanceFree) {
	defer s.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, c)
}

func (*scheduler) UnitDone(infer.UnitDone)            {}
func (s *scheduler) Return(_ *infer.Batch, err error) { panic(err) } // no test orders what cannot run

func (s *scheduler) tell() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// await waits until done is true of the scheduler, whose lock it holds.
func (s *scheduler) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		s.mu.Lock()
		ok := done()
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-s.news:
		case <-limit.C:
			t.Fatalf("no %s", what)
		}
	}
}

// granted returns the open instances.
func (s *scheduler) granted() map[infer.InstanceID]infer.Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.open)
}

// models returns the model of each open instance, by the instance's name.
func (s *scheduler) models() map[string]infer.ModelRef {
	list := make(map[string]infer.ModelRef)
	for _, g := range s.granted() {
		list[g.Name] = g.Model
	}
	return list
}
