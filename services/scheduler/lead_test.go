package scheduler_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/testkit/port"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler"
)

// replica is one of several schedulers of a pool, with a connection to the store
// of its own.
type replica struct {
	*scheduler.Scheduler
	t       *testing.T
	clock   mono.Clock
	bus     *bus.Bus
	link    *network // to the store; nil if it is direct
	outside *outside
	metrics *prometheus.Registry
	served  chan uint64 // epochs
	ended   chan struct{}
	stop    func()
}

// Serve tells of a term, Stop of its end.
func (r *replica) Serve(epoch uint64, _ schedule.Backend) { r.served <- epoch }
func (r *replica) Drain()                                 {}
func (r *replica) Stop()                                  { r.ended <- struct{}{} }

// lease is how long a holder may stand still with all the machine and stay it.
const lease = 6 * time.Second

func startReplica(t *testing.T, id, url string) *replica {
	t.Helper()
	r := &replica{
		t: t, clock: mono.New(), outside: &outside{answers: make(chan error, 10), orders: make(chan *infer.Batch, 10), retired: make(chan infer.InstanceID, 10)},
		served: make(chan uint64, 10), ended: make(chan struct{}, 10), metrics: prometheus.NewRegistry(),
	}
	var err error
	if r.bus, err = bus.Open(t.Context(), bus.Config{URL: url, Lease: lease}); err != nil {
		t.Fatal(err)
	}
	c := scheduler.Default()
	c.ID, c.Address, c.TakeoverWait = id, "at-"+id, time.Hour
	r.Scheduler, err = scheduler.New(c, scheduler.Deps{
		Bus: r.bus, Clock: r.clock, Responder: r.outside, Streams: r, Metrics: r.metrics, Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Errorf("Run of %s: %v", id, err)
		}
	})
	t.Cleanup(func() {
		r.stop()
		_ = r.bus.Close() // some tests have closed it
	})
	return r
}

// store is a NATS server on a port.
func store(t *testing.T, dir, listen string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Dir: dir, Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// holder is who holds the pool by the store.
func holder(t *testing.T, b *bus.Bus) control.Holder {
	t.Helper()
	leaders, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	e, err := leaders.Get(t.Context(), control.PoolRole("default"))
	if err != nil {
		t.Fatal(err)
	}
	return control.Holder{ID: e.Value.GetHolder(), Address: e.Value.GetAddress(), Epoch: e.Value.GetEpoch()}
}

func TestStandbyTakesThePool(t *testing.T) {
	tests := map[string]func(*replica){
		"from a scheduler that stops":    func(r *replica) { r.stop() },
		"from a scheduler that vanishes": func(r *replica) { r.link.cut() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			b := store(t, t.TempDir(), "127.0.0.1:0")
			url, link := relay(t, b.Addr())
			first := startReplica(t, "first", url)
			first.link = link
			before := <-first.served
			second := startReplica(t, "second", b.Addr())
			if got := holder(t, b); got != (control.Holder{ID: "first", Address: "at-first", Epoch: before}) {
				t.Errorf("the pool is held by %+v, want the first of epoch %d", got, before)
			}
			if _, err := second.Queues(t.Context()); errs.Of(err) != errs.StateUnavailable {
				t.Errorf("a standby answers for the pool: %v", err)
			}
			end(first)
			after := <-second.served
			if got := holder(t, b); after <= before || got != (control.Holder{ID: "second", Address: "at-second", Epoch: after}) {
				t.Errorf("then the pool is held by %+v, epoch %d after %d", got, after, before)
			}
		})
	}
}

// What a scheduler has learned the next one knows: it refuses what cannot be done in time
// before anything has run.
func TestCostsAreKeptOverSchedulers(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	models, err := bus.NewBucket(b, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		t.Fatal(err)
	}
	content := value()
	content.Versions[0].Digest = "sha256:1"
	if _, err := models.Put(t.Context(), "m", content); err != nil {
		t.Fatal(err)
	}
	first := startReplica(t, "first", b.Addr())
	<-first.served
	attach := func(r *replica) *infer.Batch {
		r.Attach(instance.Worker, infer.Held{}, r.outside)
		r.Grant(infer.Grant{Instance: instance, Model: ref, Device: "cpu", Credits: 1})
		if err := r.Submit(request(1)); err != nil {
			t.Fatal(err)
		}
		return <-r.outside.orders
	}
	order := attach(first)
	for n := range uint64(10) { // each takes ten seconds
		done := completion(order)
		done.Timing.Done = done.Timing.Start.Add(10 * time.Second)
		first.InstanceFree(done)
		if err := first.Submit(request(n + 2)); err != nil {
			t.Fatal(err)
		}
		order = <-first.outside.orders
	}
	first.stop()
	second := startReplica(t, "second", b.Addr())
	<-second.served
	attach(second) // and it is busy
	for n := uint64(2); ; n++ {
		r := request(n)
		r.Deadline = second.clock.Now().Add(time.Second)
		if err := second.Submit(r); err != nil {
			t.Fatal(err)
		}
		// Before it has read the bucket it lets in what then waits in vain.
		if reason := errs.Of(<-second.outside.answers); reason == errs.DeadlineUnmeetable {
			return
		} else if reason != errs.DeadlineQueue {
			t.Fatalf("refused as %q", reason)
		}
	}
}

// A scheduler that is cut off from the store goes on serving; when it is back
// and another holds the pool, it gives back what waits and stands by.
func TestDeposedSchedulerGivesItsRequestsBack(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	url, link := relay(t, b.Addr())
	first := startReplica(t, "first", url)
	before := <-first.served
	first.Attach(instance.Worker, infer.Held{}, first.outside)
	first.Grant(infer.Grant{Instance: instance, Model: ref, Credits: 0})
	if err := first.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	second := startReplica(t, "second", b.Addr())
	link.cut()
	after := <-second.served
	if epoch, leads := first.Leads(); !leads || epoch != before {
		t.Errorf("cut off from the store, the first scheduler leads %v under %d", leads, epoch)
	}
	link.mend()
	<-first.ended
	if reason := errs.Of(<-first.outside.answers); reason != errs.SchedulerDeposed {
		t.Errorf("the request that waited ended for %s", reason)
	}
	second.stop()
	if again := <-first.served; again <= after {
		t.Errorf("the first leads again under epoch %d, after %d", again, after)
	}
}

// A store that comes back without the leases deposes nobody.
func TestSchedulerOutlivesTheStore(t *testing.T) {
	listen := port.Address(t)
	b := store(t, t.TempDir(), listen)
	first := startReplica(t, "first", b.Addr())
	before := <-first.served
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = store(t, t.TempDir(), listen)
	leaders, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	events, err := leaders.WatchKey(t.Context(), control.PoolRole("default"))
	if err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Kind == bus.EventPut && e.Value.GetHolder() == "first" && e.Value.GetEpoch() == before {
			break
		}
	}
	if epoch, leads := first.Leads(); !leads || epoch != before || len(first.ended) != 0 {
		t.Errorf("after the store's absence the scheduler leads %v under %d, want %d", leads, epoch, before)
	}
}

// A request may come before the scheduler has heard of the only worker, which its
// gateway knows to be ready.
func TestFirstRequestWaitsForItsWorkerToAttach(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	models, err := bus.NewBucket(b, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := models.Put(t.Context(), "m", value()); err != nil {
		t.Fatal(err)
	}
	s := startReplica(t, "first", b.Addr())
	<-s.served
	if err := s.Submit(request(1)); err != nil {
		t.Fatal(err)
	}
	s.Attach(instance.Worker, infer.Held{}, s.outside)
	s.Grant(infer.Grant{Instance: instance, Model: ref, Credits: 1})
	select {
	case order := <-s.outside.orders:
		s.InstanceFree(completion(order))
	case err := <-s.outside.answers:
		t.Errorf("the first request is answered with %v", err)
	}
}

// A worker whose lease has ended may be cut off from the store alone: nobody
// knows yet that what it may have begun is lost.
func TestCutOffWorkerIsWaitedFor(t *testing.T) {
	for name, mended := range map[string]bool{"that holds its lease again": true, "that does not yet": false} {
		t.Run(name, func(t *testing.T) {
			b := store(t, t.TempDir(), "127.0.0.1:0")
			models, err := bus.NewBucket(b, bus.Models, bus.Values[*nereidv1.ModelValue]())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := models.Put(t.Context(), "m", value()); err != nil {
				t.Fatal(err)
			}
			url, link := relay(t, b.Addr())
			worker := register(t, url)
			first := startReplica(t, "first", b.Addr())
			before := <-first.served
			second := startReplica(t, "second", b.Addr())
			leases := newLeases(t, b)
			leases.until(bus.EventPut)
			link.cut()
			leases.until(bus.EventDelete)
			for second.count("nereid_scheduler_lost_workers_total") == 0 {
				<-time.After(10 * time.Millisecond)
			}
			if mended {
				link.mend()
				leases.until(bus.EventPut)
			}
			first.stop()
			<-second.served

			again := request(1)
			again.Work.Epoch, again.Work.Attempt = before, 2
			if err := second.Submit(again); err != nil {
				t.Fatal(err)
			}
			second.Attach(worker, infer.Held{}, second.outside)
			second.Grant(infer.Grant{Instance: infer.InstanceID{Worker: worker}, Model: ref, Credits: 1})
			select {
			case <-second.outside.orders:
			case err := <-second.outside.answers:
				t.Errorf("a request that no worker had begun was answered with %v, want it to run", err)
			}
		})
	}
}

// register holds a worker's lease by a connection of its own until the test
// ends, and returns the worker's incarnation.
func register(t *testing.T, url string) uint64 {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	r, err := bucket.Register(t.Context(), bus.Claim[*nereidv1.WorkerValue]{
		Key: "w", TTL: 2 * lease, // it is to end when the test has cut it off, and not before
		Value: func(epoch uint64) *nereidv1.WorkerValue {
			return &nereidv1.WorkerValue{Schema: nereidv1.Schema, Epoch: epoch}
		},
		Replace: func(*nereidv1.WorkerValue) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx) // which may not reach the store any more
	}()
	t.Cleanup(func() {
		cancel()
		_ = b.Close()
		<-ended
	})
	return r.Epoch()
}

// leases is what happens in the bucket of workers.
type leases struct {
	t      *testing.T
	events <-chan bus.Event[*nereidv1.WorkerValue]
}

func newLeases(t *testing.T, b *bus.Bus) leases {
	t.Helper()
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		t.Fatal(err)
	}
	return leases{t, bucket.Watch(t.Context())}
}

func (l leases) until(kind bus.EventKind) {
	l.t.Helper()
	for e := range l.events {
		if e.Kind == kind {
			return
		}
	}
	l.t.Fatal("the bucket is gone")
}

// count is the value of a counter of the replica.
func (r *replica) count(name string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	r.t.Fatalf("there is no %s", name)
	return 0
}

// Who has met a later scheduler tells this one.
func TestLaterEpochDeposes(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	first := startReplica(t, "first", b.Addr())
	before := <-first.served
	first.Deposed(before) // which is no later one
	first.Deposed(before + 1000)
	<-first.ended
	if again := <-first.served; again <= before {
		t.Errorf("leads again under epoch %d, after %d", again, before)
	}
}
