package bus_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
)

// epochValue keeps the epoch in the value, as every lease's value should.
func epochValue(epoch uint64) text { return value(strconv.FormatUint(epoch, 10)) }

// claim is one whose lease lives on when the process stands still for a while.
func claim(key string) bus.Claim[text] {
	return bus.Claim[text]{Key: key, TTL: 2 * patience, Value: epochValue}
}

// brief is one whose lease is renewed often, and ends soon without.
func brief(key string) bus.Claim[text] {
	c := claim(key)
	c.TTL = 6 * time.Second
	return c
}

func acquire(t *testing.T, bucket *bus.Bucket[text], c bus.Claim[text]) *bus.Lease[text] {
	t.Helper()
	return must[*bus.Lease[text]](t)(bucket.Acquire(testContext(t), c))
}

func await(t *testing.T, what string, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-testContext(t).Done():
		t.Fatalf("%s: waited in vain", what)
	}
}

func TestLeaseIsRenewedAndReleased(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	b := open(t, bus.Config{Listen: "127.0.0.1:0"})
	leaders := texts(t, b, bus.Leaders)
	events := leaders.Watch(ctx)
	hears(t, events, caughtUp)
	kv := must[jetstream.KeyValue](t)(raw(t, b).KeyValue(ctx, bus.Leaders))
	writes := must[jetstream.KeyWatcher](t)(kv.Watch(ctx, "registry", jetstream.UpdatesOnly()))
	defer func() { _ = writes.Stop() }()

	lease := acquire(t, leaders, brief("registry"))
	own := epochValue(lease.Epoch()).GetValue()
	if got := hears(t, events, put("registry", own)); got != lease.Epoch() {
		t.Errorf("acquired at revision %d, epoch %d", got, lease.Epoch())
	}
	for range 5 { // the acquisition and four renewals: longer than the time to live
		if entry := <-writes.Updates(); entry == nil || string(entry.Value()) != strconv.Quote(own) {
			t.Fatalf("written: %v", entry)
		}
	}
	if err := lease.Set(ctx, value("changed")); err != nil {
		t.Fatal(err)
	}
	hears(t, events, put("registry", "changed"))
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	hears(t, events, told{Kind: bus.EventDelete, Key: "registry"})
	await(t, "Lost after Release", lease.Lost())
	if lease.Err() != nil {
		t.Errorf("Err after Release: %v", lease.Err())
	}
	if err := lease.Set(ctx, value("late")); !errors.Is(err, bus.ErrLost) {
		t.Errorf("Set after Release: %v", err)
	}
}

func TestEqualValueOfALeaseIsNotWritten(t *testing.T) {
	ctx := testContext(t)
	leaders := texts(t, open(t, bus.Config{}), bus.Leaders)
	lease := acquire(t, leaders, claim("registry")) // it is not renewed meanwhile
	var revisions []uint64
	for _, v := range []string{"a", "a", "b"} {
		if err := lease.Set(ctx, value(v)); err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, must[bus.Entry[text]](t)(leaders.Get(ctx, "registry")).Revision)
	}
	e := lease.Epoch()
	if diff := cmp.Diff([]uint64{e + 1, e + 1, e + 2}, revisions); diff != "" {
		t.Error(diff)
	}
}

func TestElectionPassesOnAtRelease(t *testing.T) {
	leaders := texts(t, open(t, bus.Config{}), bus.Leaders)
	first := acquire(t, leaders, claim("registry"))
	next := make(chan *bus.Lease[text])
	go func() { next <- acquire(t, leaders, claim("registry")) }()
	if err := first.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	second := <-next
	if second.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d after %d", second.Epoch(), first.Epoch())
	}
	if err := second.Release(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestEarlierLifeIsReplaced(t *testing.T) {
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	old := acquire(t, workers, brief("w1"))
	again := claim("w1")
	again.Replace = func(present text) bool { return present.GetValue() == epochValue(old.Epoch()).GetValue() }
	fresh := acquire(t, workers, again)
	if fresh.Epoch() <= old.Epoch() {
		t.Errorf("epoch %d after %d", fresh.Epoch(), old.Epoch())
	}
	await(t, "the earlier life's loss", old.Lost())
	if !errors.Is(old.Err(), bus.ErrLost) {
		t.Errorf("Err = %v", old.Err())
	}
	if err := old.Release(testContext(t)); err != nil {
		t.Error(err)
	}
	if got := must[bus.Entry[text]](t)(workers.Get(testContext(t), "w1")); got.Value.GetValue() != epochValue(fresh.Epoch()).GetValue() {
		t.Errorf("the loser's Release touched %v", got)
	}
	if err := fresh.Release(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestHolderThatIsCutOffLosesToTheOther(t *testing.T) {
	t.Parallel() // it waits
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	addr, cut := relay(t, server.Addr())
	holder := open(t, bus.Config{URL: addr, Name: "holder"})
	lease := acquire(t, texts(t, holder, bus.Leaders), brief("registry"))
	next := make(chan *bus.Lease[text])
	go func() { next <- acquire(t, texts(t, server, bus.Leaders), claim("registry")) }()

	cut()
	await(t, "loss", lease.Lost())
	if !errors.Is(lease.Err(), bus.ErrLost) {
		t.Errorf("Err = %v", lease.Err())
	}
	second := <-next
	if second.Epoch() <= lease.Epoch() {
		t.Errorf("epoch %d after %d", second.Epoch(), lease.Epoch())
	}
}

func TestLeaseIsLostWhileTheServerIsAway(t *testing.T) {
	t.Parallel() // it waits
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	holder := open(t, bus.Config{URL: server.Addr()})
	lease := acquire(t, texts(t, holder, bus.Leaders), brief("registry"))
	closeBus(t, server)
	await(t, "loss", lease.Lost())
	if !errors.Is(lease.Err(), bus.ErrLost) {
		t.Errorf("Err = %v", lease.Err())
	}
}

func TestManyAcquireAtOnce(t *testing.T) {
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	const claimants = 32
	leases := make(chan *bus.Lease[text])
	for i := range claimants {
		go func() {
			lease, err := workers.Acquire(testContext(t), claim(strconv.Itoa(i)))
			if err != nil {
				t.Error(err)
			}
			leases <- lease
		}()
	}
	epochs := map[uint64]bool{}
	for range claimants {
		if lease := <-leases; lease != nil {
			epochs[lease.Epoch()] = true
		}
	}
	if len(epochs) != claimants {
		t.Errorf("%d epochs for %d leases", len(epochs), claimants)
	}
}

func TestClaimIsRefused(t *testing.T) {
	b := open(t, bus.Config{})
	short := claim("registry")
	short.TTL = 1500 * time.Millisecond
	for name, try := range map[string]func() error{
		"a time to live that NATS cannot keep": func() error {
			_, err := texts(t, b, bus.Leaders).Acquire(testContext(t), short)
			return err
		},
		"a bucket without leases": func() error {
			_, err := texts(t, b, bus.Models).Acquire(testContext(t), claim("m"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := try(); errs.Of(err) != errs.Bug {
				t.Errorf("got %v, want reason %s", err, errs.Bug)
			}
		})
	}
}
