package bus_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/testkit/port"
)

// store is a NATS server that other buses use, and which can lose its data.
type store struct {
	t    *testing.T
	dir  string
	addr string
	bus  *bus.Bus
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{t: t, dir: filepath.Join(t.TempDir(), "store")}
	s.bus = open(t, bus.Config{Dir: s.dir, Listen: port.Address(t)})
	s.addr = s.bus.Addr()
	t.Cleanup(s.stop) // after those who use it
	return s
}

func (s *store) stop() {
	s.t.Helper()
	closeBus(s.t, s.bus)
}

// start starts the server on its directory. It makes no buckets.
func (s *store) start() {
	s.t.Helper()
	b, err := bus.Open(testContext(s.t), bus.Config{Dir: s.dir, Listen: s.addr[len("nats://"):]})
	if err != nil {
		s.t.Fatal(err)
	}
	s.bus = b
}

// lose starts the server on an empty directory. A server that makes a stream while it stops leaks
// goroutines, so all streams are made before.
func (s *store) lose() {
	s.t.Helper()
	if err := s.bus.EnsureBuckets(testContext(s.t)); err != nil {
		s.t.Fatal(err)
	}
	s.stop()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

// keep runs a process that makes missing buckets.
func (s *store) keep() *bus.Bus {
	s.t.Helper()
	b := open(s.t, bus.Config{URL: s.addr})
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.KeepBuckets(ctx)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		// What was in flight is done then: a server that makes a stream while it
		// stops leaks goroutines.
		late, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer end()
		if err := b.EnsureBuckets(late); err != nil {
			s.t.Error(err)
		}
	})
	return b
}

var lost = event{Kind: bus.EventLost}

func TestEndsOfALostBucketWaitForTheMark(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s := newStore(t)
	writer, reader := s.keep(), open(t, bus.Config{URL: s.addr})
	models := texts(t, writer, bus.Models)
	must[uint64](t)(models.Put(ctx, "a", value("old")))
	last := must[uint64](t)(models.Put(ctx, "b", value("old")))
	events := texts(t, reader, bus.Models).Watch(ctx)
	expectEvents(t, events, put("a", "old"), put("b", "old"), caughtUp)

	s.lose()
	if revision := expectEvents(t, events, lost, caughtUp); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	if must[bool](t)(models.Synced(ctx)) {
		t.Error("the bucket is synced before it was marked")
	}
	must[uint64](t)(models.Put(ctx, "c", value("new")))
	if revision := must[uint64](t)(models.Put(ctx, "a", value("new"))); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	expectEvents(t, events, put("c", "new"), put("a", "new"))
	for range 2 {
		if err := models.MarkSynced(ctx); err != nil {
			t.Fatal(err)
		}
	}
	expectEvents(t, events, event{Kind: bus.EventDelete, Key: "b", Expired: true}, caughtUp)
	if keys := must[[]string](t)(models.Keys(ctx)); len(keys) != 2 {
		t.Errorf("keys %q", keys)
	}

	// Again; the reader may reconnect before or after it is restored.
	s.lose()
	expectEvents(t, events, lost, caughtUp)
	must[uint64](t)(models.Put(ctx, "a", value("newer")))
	if err := models.MarkSynced(ctx); err != nil {
		t.Fatal(err)
	}
	expectEvents(t, events, put("a", "newer"), event{Kind: bus.EventDelete, Key: "c", Expired: true}, caughtUp)
}

// TestEpochsGrowAcrossALoss loses the store while one holds a lease and another
// waits for it: the holder writes its key again before the other may have it, and
// the next epoch is higher than all before.
func TestEpochsGrowAcrossALoss(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s := newStore(t)
	s.keep()
	holder, standby := open(t, bus.Config{URL: s.addr}), open(t, bus.Config{URL: s.addr})
	events := texts(t, open(t, bus.Config{URL: s.addr}), bus.Leaders).Watch(ctx)
	expectEvents(t, events, caughtUp)
	own := claim("pool")
	own.Value = func(uint64) text { return value("holder") }
	r := must[*bus.Registration[text]](t)(texts(t, holder, bus.Leaders).Register(ctx, own))
	expectEvents(t, events, put("pool", "holder"))
	holding, release := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- r.Run(holding) }()
	next := standBy(t, texts(t, standby, bus.Leaders), "pool")

	s.lose()
	expectEvents(t, events, lost, caughtUp) // and no end
	again := uint64(0)
	for again == 0 {
		if e, err := texts(t, standby, bus.Leaders).Get(ctx, "pool"); err == nil {
			again = e.Revision
		} else if ctx.Err() != nil {
			t.Fatal("the holder does not write its key again")
		}
	}
	if again <= r.Epoch() {
		t.Errorf("revision %d after epoch %d", again, r.Epoch())
	}
	select {
	case got := <-next:
		t.Fatalf("the standby has the lease: %+v", got)
	default:
	}
	release()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	if lease := next.lease(t); lease.Epoch() <= again {
		t.Errorf("epoch %d after %d", lease.Epoch(), again)
	}
}

// TestReleaseAfterALossWakesTheStandby releases a lease that the new store
// lacks. The standby would leave it to its holder for as long as a lease
// lives, which is longer than the test waits.
func TestReleaseAfterALossWakesTheStandby(t *testing.T) {
	t.Parallel() // it waits
	s := newStore(t)
	s.keep()
	lease := acquire(t, texts(t, open(t, bus.Config{URL: s.addr}), bus.Leaders), claim("pool"))
	standby := texts(t, open(t, bus.Config{URL: s.addr}), bus.Leaders)
	next := standBy(t, standby, "pool")

	s.lose()
	await(t, "loss", lease.Lost())
	if err := lease.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if second := next.lease(t); second.Epoch() <= lease.Epoch() {
		t.Errorf("epoch %d after %d", second.Epoch(), lease.Epoch())
	}
}

// TestLossIsLoggedOnce counts the lines of a process with many watches.
func TestLossIsLoggedOnce(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	s := newStore(t)
	s.keep()
	core, lines := observer.New(zap.WarnLevel)
	b, err := bus.Open(ctx, bus.Config{URL: s.addr, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBus(t, b) })
	var watches []<-chan bus.Event[text]
	for _, spec := range bus.Buckets() {
		watches = append(watches, texts(t, b, spec.Name).Watch(ctx))
	}
	for _, events := range watches {
		expectEvents(t, events, caughtUp)
	}
	s.lose()
	for _, events := range watches {
		expectEvents(t, events, lost)
	}
	reports := lines.FilterMessageSnippet("has lost what it held").All()
	if len(reports) != 1 || reports[0].ContextMap()["cause"] == "" {
		t.Errorf("reports: %v", reports)
	}
}
