package bus_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/testkit/port"
)

// store is a NATS server that others use, and which can lose what it holds.
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

// stop stops the server.
func (s *store) stop() {
	s.t.Helper()
	closeBus(s.t, s.bus)
}

// start starts it with what is in its directory. It makes no buckets.
func (s *store) start() {
	s.t.Helper()
	b, err := bus.Open(testContext(s.t), bus.Config{Dir: s.dir, Listen: s.addr[len("nats://"):]})
	if err != nil {
		s.t.Fatal(err)
	}
	s.bus = b
}

// lose starts it with nothing. A server that makes a stream while it stops leaves
// goroutines behind, so all are made by then.
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

// backup copies what the server has on the disk.
func (s *store) backup() (dir string) {
	s.t.Helper()
	dir = filepath.Join(s.t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(s.dir)); err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// goBack starts it with what a backup holds.
func (s *store) goBack(backup string) {
	s.t.Helper()
	s.stop()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
	if err := os.CopyFS(s.dir, os.DirFS(backup)); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

// keep has a process make buckets again.
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
		// What was under way is done then: a server that makes a stream while it
		// stops leaves goroutines behind.
		late, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer end()
		if err := b.EnsureBuckets(late); err != nil {
			s.t.Error(err)
		}
	})
	return b
}

var lost = told{Kind: bus.EventLost}

func TestLostBucketIsRestoredBeforeItsEndsAreTold(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t)
	writer, reader := s.keep(), open(t, bus.Config{URL: s.addr})
	models := texts(t, writer, bus.Models)
	must[uint64](t)(models.Put(ctx, "a", value("old")))
	last := must[uint64](t)(models.Put(ctx, "b", value("old")))
	events := texts(t, reader, bus.Models).Watch(ctx)
	hears(t, events, put("a", "old"), put("b", "old"), caughtUp)

	s.lose()
	if revision := hears(t, events, lost, caughtUp); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	if whole := must[bool](t)(models.Whole(ctx)); whole {
		t.Error("the bucket is whole before anybody said so")
	}
	must[uint64](t)(models.Put(ctx, "c", value("new")))
	if revision := must[uint64](t)(models.Put(ctx, "a", value("new"))); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	hears(t, events, put("c", "new"), put("a", "new"))
	for range 2 {
		if err := models.SetWhole(ctx); err != nil {
			t.Fatal(err)
		}
	}
	hears(t, events, told{Kind: bus.EventDelete, Key: "b", Expired: true}, caughtUp)
	if keys := must[[]string](t)(models.Keys(ctx)); len(keys) != 2 {
		t.Errorf("keys %q", keys)
	}

	// Again, while the reader is away from the store until it is restored.
	s.lose()
	hears(t, events, lost, caughtUp)
	must[uint64](t)(models.Put(ctx, "a", value("newer")))
	if err := models.SetWhole(ctx); err != nil {
		t.Fatal(err)
	}
	hears(t, events, put("a", "newer"), told{Kind: bus.EventDelete, Key: "c", Expired: true}, caughtUp)
}

// TestEpochsGrowAcrossALoss loses the store while one holds a lease and another
// waits for it: the holder writes its key again before the other may take it,
// and the next epoch is higher than all before.
func TestEpochsGrowAcrossALoss(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t)
	s.keep()
	holder, standby := open(t, bus.Config{URL: s.addr}), open(t, bus.Config{URL: s.addr})
	events := texts(t, open(t, bus.Config{URL: s.addr}), bus.Leaders).Watch(ctx)
	hears(t, events, caughtUp)
	own := claim("pool")
	own.Value = func(uint64) text { return value("holder") }
	r := must[*bus.Registration[text]](t)(texts(t, holder, bus.Leaders).Register(ctx, own))
	hears(t, events, put("pool", "holder"))
	holding, release := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- r.Run(holding) }()
	next := make(chan *bus.Lease[text])
	other := claim("pool")
	asked := make(chan struct{}, 8)
	other.Replace = func(text) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return false
	}
	go func() { next <- acquire(t, texts(t, standby, bus.Leaders), other) }()
	await(t, "the standby to see the holder", asked)

	s.lose()
	hears(t, events, lost, caughtUp) // and no end
	again := func() uint64 {
		for {
			if e, err := texts(t, standby, bus.Leaders).Get(ctx, "pool"); err == nil {
				return e.Revision
			}
			if ctx.Err() != nil {
				t.Fatal("the holder does not write its key again")
			}
		}
	}()
	if again <= r.Epoch() {
		t.Errorf("revision %d after epoch %d", again, r.Epoch())
	}
	select {
	case lease := <-next:
		t.Fatalf("the standby took the lease in epoch %d", lease.Epoch())
	default:
	}
	release()
	if err := <-kept; err != nil {
		t.Fatal(err)
	}
	lease := <-next
	if lease.Epoch() <= again {
		t.Errorf("epoch %d after %d", lease.Epoch(), again)
	}
}

// TestStoreThatGoesBackIsMadeAnew starts the server with an older copy of its
// directory: nobody takes the old values for new ones, and revisions go on above
// those that were seen.
func TestStoreThatGoesBackIsMadeAnew(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t)
	writer, reader := s.keep(), open(t, bus.Config{URL: s.addr})
	models := texts(t, writer, bus.Models)
	must[uint64](t)(models.Put(ctx, "a", value("older")))
	s.stop()
	old := s.backup()
	s.start()
	events := texts(t, reader, bus.Models).Watch(ctx)
	hears(t, events, put("a", "older"), caughtUp)
	var last uint64
	for last == 0 {
		last, _ = models.Put(ctx, "a", value("present")) // fails while the writer has not noticed the new server
	}
	hears(t, events, put("a", "present"))

	s.goBack(old)
	if revision := hears(t, events, lost, caughtUp); revision <= last {
		t.Errorf("revision %d after %d", revision, last)
	}
	must[uint64](t)(models.Put(ctx, "a", value("restored")))
	hears(t, events, put("a", "restored"))
}

// TestDoubtIsEnough has a value tell of a revision that a store which went back
// does not have, to a process that has seen nothing of what was lost.
func TestDoubtIsEnough(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t)
	writer := s.keep()
	workers := texts(t, writer, bus.Workers)
	lease := acquire(t, workers, claim("w1"))
	if err := writer.Doubt(ctx, bus.Workers, lease.Epoch()); err != nil {
		t.Fatal(err)
	}
	const ahead = 1e12
	events := workers.Watch(ctx)
	hears(t, events, put("w1", epochValue(lease.Epoch()).GetValue()), caughtUp)
	if err := writer.Doubt(ctx, bus.Workers, lease.Epoch()+ahead); err != nil {
		t.Fatal(err)
	}
	hears(t, events, lost)
	if again := acquire(t, workers, claim("w2")); again.Epoch() <= lease.Epoch()+ahead {
		t.Errorf("epoch %d, want more than %d", again.Epoch(), lease.Epoch()+uint64(ahead))
	}
}

// TestLossIsLoggedOnce counts the lines of a process with many watches.
func TestLossIsLoggedOnce(t *testing.T) {
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
		hears(t, events, caughtUp)
	}
	s.lose()
	for _, events := range watches {
		hears(t, events, lost)
	}
	said := lines.FilterMessageSnippet("has lost what it held").All()
	if len(said) != 1 || said[0].ContextMap()["cause"] == "" || said[0].Time.After(time.Now()) {
		t.Errorf("said: %v", said)
	}
}
