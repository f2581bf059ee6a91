package bus_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/testkit/port"
)

func TestWatchOutlivesTheServer(t *testing.T) {
	ctx := testContext(t)
	dir := t.TempDir()
	first := open(t, bus.Config{Dir: dir, Listen: port.Address(t)})
	addr := first.Addr()
	reader := open(t, bus.Config{URL: addr})
	kept, gone, changed := value("kept"), value("gone"), value("changed")
	put1 := func(b *bus.Bus, key string, v text) {
		t.Helper()
		must[uint64](t)(texts(t, b, bus.Models).Put(ctx, key, v))
	}
	put1(first, "a", kept)
	put1(first, "b", gone)
	put1(first, "c", gone)
	events := texts(t, reader, bus.Models).Watch(ctx)
	expectEvents(t, events, put("a", "kept"), put("b", "gone"), put("c", "gone"), caughtUp)

	closeBus(t, first)
	if _, err := texts(t, reader, bus.Models).Put(ctx, "a", changed); err == nil {
		t.Error("a write succeeds while the server is away")
	}
	// The reader cannot see these changes: nothing listens.
	alone := open(t, bus.Config{Dir: dir})
	put1(alone, "c", changed)
	if err := texts(t, alone, bus.Models).Delete(ctx, "b", 0); err != nil {
		t.Fatal(err)
	}
	closeBus(t, alone)

	open(t, bus.Config{Dir: dir, Listen: addr[len("nats://"):]})
	expectEvents(t, events, put("c", "changed"), event{Kind: bus.EventDelete, Key: "b"}, caughtUp)
	if !reader.Connected() {
		t.Error("Connected is false after the watch resumed")
	}
}

func TestRestartedHolderStartsAtOnce(t *testing.T) {
	t.Parallel() // it waits
	dir := t.TempDir()
	first := open(t, bus.Config{Dir: dir})
	old := acquire(t, texts(t, first, bus.Workers), claim("w1"))
	closeBus(t, first)

	again := claim("w1") // it does not end within the test
	again.Replace = func(text) bool { return true }
	second := open(t, bus.Config{Dir: dir})
	if fresh := acquire(t, texts(t, second, bus.Workers), again); fresh.Epoch() <= old.Epoch() {
		t.Errorf("epoch %d after %d", fresh.Epoch(), old.Epoch())
	}
}

// TestReturningHolderIsNotReportedAsGone restarts the server after the leases have
// ended: the end of a holder that comes back is never sent.
func TestReturningHolderIsNotReportedAsGone(t *testing.T) {
	t.Parallel() // it waits
	dir := t.TempDir()
	first := open(t, bus.Config{Dir: dir, Listen: port.Address(t)})
	addr := first.Addr()
	ctx := testContext(t)
	back, dead := brief("back"), brief("dead")
	dead.Value = func(uint64) text { return value("dead") }
	events := texts(t, open(t, bus.Config{URL: addr}), bus.Workers).Watch(ctx)
	expectEvents(t, events, caughtUp) // else the order would be that of the last renewals
	acquire(t, texts(t, first, bus.Workers), dead)
	holder := open(t, bus.Config{URL: addr})
	lease := acquire(t, texts(t, holder, bus.Workers), back)
	epoch := func(l *bus.Lease[text]) string { return epochValue(l.Epoch()).GetValue() }
	expectEvents(t, events, put("dead", "dead"), put("back", epoch(lease)))

	closeBus(t, first)
	await(t, "loss", lease.Lost())
	open(t, bus.Config{Dir: dir, Listen: addr[len("nats://"):]})
	expectEvents(t, events, caughtUp)
	lease = acquire(t, texts(t, holder, bus.Workers), back)
	expectEvents(t, events, put("back", epoch(lease)), event{Kind: bus.EventDelete, Key: "dead", Expired: true})
}

// TestLeaseIsLeftToItsHolder restarts the server after a lease has ended. Another
// process waits for it, and is back before the holder.
func TestLeaseIsLeftToItsHolder(t *testing.T) {
	t.Parallel() // it waits
	for name, tt := range map[string]struct {
		patience time.Duration // of the other process
		dies     bool
	}{
		"that comes back":       {time.Hour, false},
		"but not if it is dead": {3 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			s := newStore(t)
			holder, standby := open(t, bus.Config{URL: s.addr}), open(t, bus.Config{URL: s.addr})
			lease := acquire(t, texts(t, holder, bus.Leaders), brief("pool"))
			other, asked := claim("pool"), make(chan struct{}, 1)
			other.TTL = tt.patience
			other.Replace = func(text) bool {
				select {
				case asked <- struct{}{}:
				default:
				}
				return false
			}
			next := acquiring(ctx, texts(t, standby, bus.Leaders), other)
			await(t, "the standby to see the holder", asked)
			events := texts(t, standby, bus.Leaders).Watch(ctx)
			expectEvents(t, events, put("pool", epochValue(lease.Epoch()).GetValue()), caughtUp)

			s.stop()
			await(t, "loss", lease.Lost())
			s.start()
			for e := range events {
				if e.Kind == bus.EventCaughtUp {
					break // the standby is back
				}
			}
			if tt.dies {
				if second := next.lease(t); second.Epoch() <= lease.Epoch() {
					t.Errorf("epoch %d after %d", second.Epoch(), lease.Epoch())
				}
				return
			}
			again := acquiring(ctx, texts(t, holder, bus.Leaders), claim("pool"))
			select {
			case got := <-next:
				t.Fatalf("the standby has the lease, though its holder was there: %+v", got)
			case got := <-again:
				lease = acquiredBy(t, got)
			}
			if err := lease.Release(ctx); err != nil {
				t.Fatal(err)
			}
			next.lease(t)
		})
	}
}
