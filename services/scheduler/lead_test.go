package scheduler_test

import (
	"context"
	"fmt"
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
func (r *replica) Placed(infer.Work, uint64)              {}
func (r *replica) Left(uint64)                            {}
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
	url, link := relay(t, b.Addr())
	first := startReplica(t, "first", url)
	first.learn(b)
	first.stop()
	if released, kept := link.lastSent(bus.SubjectPrefix(bus.Leaders)), link.lastSent(bus.SubjectPrefix(bus.Costs)); released < 0 || kept < released {
		t.Errorf("the pool was released at byte %d, and costs were written at byte %d: the next scheduler waits for them", released, kept)
	}
	second := startReplica(t, "second", b.Addr())
	<-second.served
	second.attach() // and it is busy
	for n := uint64(2); ; n++ {
		r := request(n)
		r.Deadline = second.clock.Now().Add(time.Second)
		if err := second.Submit(r); err != nil {
			t.Fatal(err)
		}
		// Before it has read the bucket it lets in what then waits in vain.
		switch reason := errs.Of(<-second.outside.answers); reason {
		case errs.DeadlineUnmeetable, errs.DeadlineTooShort:
			return
		case errs.DeadlineQueue:
		default:
			t.Fatalf("refused as %q", reason)
		}
	}
}

// attach has a worker attach that runs one batch at a time, and returns its first.
func (r *replica) attach() *infer.Batch {
	r.Attach(instance.Worker, infer.Held{}, r.outside)
	r.Grant(infer.Grant{Instance: instance, Model: ref, Device: "cpu", Credits: 1})
	if err := r.Submit(request(1)); err != nil {
		r.t.Fatal(err)
	}
	return <-r.outside.orders
}

// learn has the scheduler learn, once it serves its pool, that executions of the model m take
// ten seconds each.
func (r *replica) learn(b *bus.Bus) {
	r.t.Helper()
	models, err := bus.NewBucket(b, bus.Models, bus.Values[*nereidv1.ModelValue]())
	if err != nil {
		r.t.Fatal(err)
	}
	content := value()
	content.Versions[0].Digest = "sha256:1"
	if _, err := models.Put(r.t.Context(), "m", content); err != nil {
		r.t.Fatal(err)
	}
	<-r.served
	order := r.attach()
	for n := range uint64(10) {
		done := completion(order)
		done.Timing.Done = done.Timing.Start.Add(10 * time.Second)
		r.InstanceFree(done)
		if err := r.Submit(request(n + 2)); err != nil {
			r.t.Fatal(err)
		}
		order = <-r.outside.orders
	}
}

// The next scheduler may have written costs before the last one has. One that has read them before it
// wrote may replace them: it reads once the model is known to it, which no test sees, and rarely as
// late as that.
func TestCostsOfTheNextSchedulerStay(t *testing.T) {
	const tries = 5
	for try := range tries {
		found, written := costsAfterAnother(t, fmt.Sprint("first", try))
		if found == written {
			return
		}
	}
	t.Errorf("%d times the costs that another scheduler wrote were replaced", tries)
}

// costsAfterAnother has a scheduler learn and stop after another one has written costs. It returns the
// revision that is there then, and that of the other one.
func costsAfterAnother(t *testing.T, id string) (found, written uint64) {
	t.Helper()
	b := store(t, t.TempDir(), "127.0.0.1:0")
	costs, err := bus.NewBucket(b, bus.Costs, bus.Values[*nereidv1.CostsValue]())
	if err != nil {
		t.Fatal(err)
	}
	first := startReplica(t, id, b.Addr())
	first.learn(b)
	written, err = costs.Put(t.Context(), "m", &nereidv1.CostsValue{Schema: nereidv1.Schema, Versions: []*nereidv1.VersionCosts{{Version: 7}}})
	if err != nil {
		t.Fatal(err)
	}
	first.stop()
	e, err := costs.Get(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	return e.Revision, written
}

// hangs bounds the wait for what would never come if the scheduler were wrong.
const hangs = 25 * time.Second

// putAttached writes the pool's value as a scheduler of a much later epoch would.
func putAttached(t *testing.T, b *bus.Bus) (written uint64, bucket *bus.Bucket[*nereidv1.AttachedValue]) {
	t.Helper()
	bucket, err := bus.NewBucket(b, bus.Attached, bus.Values[*nereidv1.AttachedValue]())
	if err != nil {
		t.Fatal(err)
	}
	written, err = bucket.Put(t.Context(), "default", &nereidv1.AttachedValue{Schema: nereidv1.Schema, Epoch: 1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	return written, bucket
}

// Which workers may have got batches is the later scheduler's to say: an earlier one would send
// batches to workers of which that does not know.
func TestSchedulerOfAnEarlierEpochDoesNotBegin(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	written, bucket := putAttached(t, b)
	leaders, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	events, err := leaders.WatchKey(t.Context(), control.PoolRole("default"))
	if err != nil {
		t.Fatal(err)
	}
	first := startReplica(t, "first", b.Addr())
	for released, late := false, time.After(hangs); !released; {
		select {
		case e := <-events:
			released = e.Kind == bus.EventDelete
		case epoch := <-first.served:
			t.Fatalf("it serves the pool under epoch %d", epoch)
		case <-late:
			t.Fatal("it neither serves the pool nor releases it")
		}
	}
	if e, err := bucket.Get(t.Context(), "default"); err != nil || e.Revision != written {
		t.Errorf("the later scheduler's value is now %v, %v", e.Value, err)
	}
}

func TestSchedulerOfAnEarlierEpochEnds(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	first := startReplica(t, "first", b.Addr())
	<-first.served
	putAttached(t, b)
	select {
	case <-first.ended:
	case <-time.After(hangs):
		t.Error("it still serves the pool")
	}
}

// What follows the leases may be behind when a scheduler begins, just after the store was away:
// so it reads them once more when it has the pool.
func TestLeasesAreReadWhenALeadershipBegins(t *testing.T) {
	b := store(t, t.TempDir(), "127.0.0.1:0")
	url, link := relay(t, b.Addr())
	first := startReplica(t, "first", url)
	<-first.served
	if inherited, read := link.lastSent("PUB "+bus.SubjectPrefix(bus.Attached)), link.lastSent(".CONSUMER.CREATE."+bus.StreamName(bus.Workers)+"."); inherited < 0 || read < inherited {
		t.Errorf("the leases were read at byte %d, and the pool's value was written at byte %d", read, inherited)
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
