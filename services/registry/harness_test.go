package registry_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

// TestMain lets one goroutine of the NATS client be: an object that is put before
// that one has run leaves it with a channel that was taken away, for good.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

// gatewayAckTimeout bounds what a test waits for; no test measures it.
const gatewayAckTimeout = 2 * time.Minute

const echoConfig = `backend: "echo"
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
`

// store is a real bus and what the tests see of it.
type store struct {
	t           *testing.T
	bus         *bus.Bus
	models      view[*nereidv1.ModelValue]
	assignments view[*nereidv1.AssignmentValue]
	leaders     view[*nereidv1.LeaderValue]
	workers     *bus.Bucket[*nereidv1.WorkerValue]
	queues      registry.Queues   // of the replicas that are started
	complete    registry.Complete // the same
}

// newStore has leases that end only by release, however slow the machine.
func newStore(t *testing.T) *store { return openStore(t, bus.Config{Lease: gatewayAckTimeout}) }

func openStore(t *testing.T, cfg bus.Config) *store {
	t.Helper()
	ctx := testContext(t)
	b, err := bus.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	if err := b.EnsureBuckets(ctx); err != nil {
		t.Fatal(err)
	}
	return &store{
		t:           t,
		bus:         b,
		models:      viewOf[*nereidv1.ModelValue](t, b, bus.Models),
		assignments: viewOf[*nereidv1.AssignmentValue](t, b, bus.Assignments),
		leaders:     viewOf[*nereidv1.LeaderValue](t, b, bus.Leaders),
		workers:     viewOf[*nereidv1.WorkerValue](t, b, bus.Workers).Bucket,
	}
}

// byWorker joins what workers should run of each model, in the order of keys.
// The head says by which leader and models. A worker without one is left out.
func byWorker(all map[string]*nereidv1.AssignmentValue) map[string]*nereidv1.AssignmentValue {
	joined := make(map[string]*nereidv1.AssignmentValue)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		worker, model := bus.CutKey(key)
		if all[bus.OwnedKey(worker, "")] == nil {
			continue
		}
		if model == "" { // the first of the keys
			joined[worker] = proto.CloneOf(all[key])
		}
		joined[worker].Versions = append(joined[worker].Versions, all[key].GetVersions()...)
	}
	return joined
}

// replica is a running registry.
type replica struct {
	*registry.Registry
	logs *logWatch
	stop func()
}

// start runs a registry over the repositories until stop or the test's end.
func (s *store) start(roots ...string) *replica {
	s.t.Helper()
	return s.startWith(func(c *registry.Config) { c.Repositories = roots })
}

func (s *store) startWith(edit func(*registry.Config)) *replica {
	s.t.Helper()
	logs := &logWatch{news: make(chan struct{}, 1), seen: make(map[string]bool)}
	cfg := registry.Default()
	cfg.Holder, cfg.Retry = "test", 20*time.Millisecond
	edit(&cfg)
	r, err := registry.New(cfg, registry.Deps{Bus: s.bus, Queues: s.queues, Complete: s.complete, Log: zap.New(logs.core())})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run = %v", err)
		}
	})
	s.t.Cleanup(stop)
	return &replica{Registry: r, logs: logs, stop: stop}
}

// announced waits until a leader of a later epoch has announced its scan.
func (s *store) announced(after uint64) *nereidv1.LeaderValue {
	s.t.Helper()
	var leader *nereidv1.LeaderValue
	s.leaders.await(s.t, "announcement", func(all map[string]*nereidv1.LeaderValue) bool {
		leader = all["registry"]
		return leader.GetEpoch() > after && leader.GetModelsRevision() > 0
	})
	return leader
}

// announcedBy waits until the replica leads and has announced its scan.
func (s *store) announcedBy(holder string) *nereidv1.LeaderValue {
	s.t.Helper()
	var leader *nereidv1.LeaderValue
	s.leaders.await(s.t, "announcement by "+holder, func(all map[string]*nereidv1.LeaderValue) bool {
		leader = all["registry"]
		return leader.GetHolder() == holder && leader.GetModelsRevision() > 0
	})
	return leader
}

// worker registers a worker; leave ends it.
func (s *store) worker(id string, kind nereidv1.DeviceKind) (leave func()) {
	s.t.Helper()
	return s.workerAt(id, "", kind)
}

// workerAt registers a worker that listens at an address.
func (s *store) workerAt(id, address string, kind nereidv1.DeviceKind) (leave func()) {
	s.t.Helper()
	lease, err := s.workers.Acquire(testContext(s.t), bus.Claim[*nereidv1.WorkerValue]{
		Key: id,
		Value: func(epoch uint64) *nereidv1.WorkerValue {
			return &nereidv1.WorkerValue{Schema: nereidv1.Schema, WorkerId: id, Epoch: epoch, Device: &nereidv1.WorkerDevice{Kind: kind}, Address: address}
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := lease.Release(testContext(s.t)); err != nil {
			s.t.Errorf("release worker %s: %v", id, err)
		}
	}
}

// put writes a value as another writer would, whatever its schema.
func (s *store) put(bucket, key string, value *nereidv1.ModelValue) {
	s.t.Helper()
	codec := bus.Values[*nereidv1.ModelValue]()
	codec.Encode = func(v *nereidv1.ModelValue) ([]byte, error) { return protojson.Marshal(v) }
	b, err := bus.NewBucket(s.bus, bucket, codec)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := b.Put(testContext(s.t), key, value); err != nil {
		s.t.Fatal(err)
	}
}

// view reads a bucket as its readers do: by watching.
type view[T any] struct{ *bus.Bucket[T] }

func viewOf[T nereidv1.Value](t *testing.T, b *bus.Bus, name string) view[T] {
	t.Helper()
	bucket, err := bus.NewBucket(b, name, bus.Values[T]())
	if err != nil {
		t.Fatal(err)
	}
	return view[T]{bucket}
}

// all gives the present values and the bucket's revision.
func (v view[T]) all(t *testing.T) (map[string]T, uint64) {
	t.Helper()
	return v.await(t, "values", func(map[string]T) bool { return true })
}

// await watches until done says that the values are as wanted.
func (v view[T]) await(t *testing.T, what string, done func(map[string]T) bool) (map[string]T, uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	values, revision, whole := make(map[string]T), uint64(0), false
	for e := range v.Watch(ctx) {
		revision = max(revision, e.Revision)
		switch e.Kind {
		case bus.EventPut:
			values[e.Key] = e.Value
		case bus.EventDelete:
			delete(values, e.Key)
		case bus.EventCaughtUp:
			whole = true
		}
		if whole && done(maps.Clone(values)) {
			return values, revision
		}
	}
	t.Fatalf("waited in vain for %s; last %v", what, values)
	return nil, 0
}

// logWatch waits for log messages.
type logWatch struct {
	mu   sync.Mutex
	seen map[string]bool // guarded by mu
	news chan struct{}
}

func (l *logWatch) core() zapcore.Core {
	all := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zapcore.DebugLevel)
	return zapcore.RegisterHooks(all, l.hook)
}

func (l *logWatch) hook(e zapcore.Entry) error {
	l.mu.Lock()
	l.seen[e.Message] = true
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
	return nil
}

func (l *logWatch) await(t *testing.T, message string) {
	t.Helper()
	ctx := testContext(t)
	for {
		l.mu.Lock()
		seen := l.seen[message]
		l.mu.Unlock()
		if seen {
			return
		}
		select {
		case <-l.news:
		case <-ctx.Done():
			t.Fatalf("waited in vain for the log message %q", message)
		}
	}
}

func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	return root
}

// write gives a file its content at once: a poll never sees half of it.
func write(t *testing.T, path, text string) {
	t.Helper()
	whole := filepath.Join(t.TempDir(), "whole")
	if err := errors.Join(os.WriteFile(whole, []byte(text), 0o644), os.Rename(whole, path)); err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), gatewayAckTimeout)
	t.Cleanup(cancel)
	return ctx
}

func protoEqual() cmp.Option { return protocmp.Transform() }
