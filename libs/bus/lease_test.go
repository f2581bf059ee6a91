package bus_test

import (
	"context"
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

// claim is one whose lease outlives a pause of the process.
func claim(key string) bus.Claim[text] {
	return bus.Claim[text]{Key: key, TTL: 2 * patience, Value: epochValue}
}

// brief is one whose lease is renewed often, and ends soon if it is not.
func brief(key string) bus.Claim[text] {
	c := claim(key)
	c.TTL = 6 * time.Second
	return c
}

func acquire(t *testing.T, bucket *bus.Bucket[text], c bus.Claim[text]) *bus.Lease[text] {
	t.Helper()
	return must[*bus.Lease[text]](t)(bucket.Acquire(testContext(t), c))
}

// standby is a claimant that waits; it receives once.
type standby <-chan acquired

type acquired struct {
	*bus.Lease[text]
	err error
}

// acquiring acquires a lease in a goroutine.
func acquiring(ctx context.Context, bucket *bus.Bucket[text], c bus.Claim[text]) standby {
	next := make(chan acquired, 1)
	go func() {
		lease, err := bucket.Acquire(ctx, c)
		next <- acquired{lease, err}
	}()
	return next
}

// standBy waits for a key, and returns when it has seen another's value there.
func standBy(t *testing.T, bucket *bus.Bucket[text], key string) standby {
	t.Helper()
	return standByUntil(testContext(t), t, bucket, key)
}

func standByUntil(ctx context.Context, t *testing.T, bucket *bus.Bucket[text], key string) standby {
	t.Helper()
	c, asked := claim(key), make(chan struct{}, 1)
	c.Replace = func(text) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return false
	}
	next := acquiring(ctx, bucket, c)
	await(t, "the standby to see the holder", asked)
	return next
}

// lease waits for the claimant's lease.
func (s standby) lease(t *testing.T) *bus.Lease[text] {
	t.Helper()
	return acquiredBy(t, <-s) // which ends with its context
}

func acquiredBy(t *testing.T, got acquired) *bus.Lease[text] {
	t.Helper()
	if got.err != nil {
		t.Fatal(got.err)
	}
	return got.Lease
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
	expectEvents(t, events, caughtUp)
	kv := must[jetstream.KeyValue](t)(raw(t, b).KeyValue(ctx, bus.Leaders))
	writes := must[jetstream.KeyWatcher](t)(kv.Watch(ctx, "registry", jetstream.UpdatesOnly()))
	defer func() { _ = writes.Stop() }()

	lease := acquire(t, leaders, brief("registry"))
	own := epochValue(lease.Epoch()).GetValue()
	if got := expectEvents(t, events, put("registry", own)); got != lease.Epoch() {
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
	expectEvents(t, events, put("registry", "changed"))
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	expectEvents(t, events, event{Kind: bus.EventDelete, Key: "registry"})
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

func TestReleaseElectsTheNext(t *testing.T) {
	leaders := texts(t, open(t, bus.Config{}), bus.Leaders)
	first := acquire(t, leaders, claim("registry"))
	next := acquiring(testContext(t), leaders, claim("registry"))
	if err := first.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	second := next.lease(t)
	if second.Epoch() <= first.Epoch() {
		t.Errorf("epoch %d after %d", second.Epoch(), first.Epoch())
	}
	if err := second.Release(testContext(t)); err != nil {
		t.Error(err)
	}
}

// A caller that stops knows its own cancellation from the end of the bus.
func TestAWaitingClaimantEndsWithItsContextOrTheBus(t *testing.T) {
	holder := open(t, bus.Config{Listen: "127.0.0.1:0"})
	acquire(t, texts(t, holder, bus.Leaders), claim("registry"))
	waiting := open(t, bus.Config{URL: holder.Addr()})
	ctx, cancel := context.WithCancel(testContext(t))
	next := standByUntil(ctx, t, texts(t, waiting, bus.Leaders), "registry")
	cancel()
	if got := <-next; !errors.Is(got.err, context.Canceled) || errs.Of(got.err) != errs.StateUnavailable {
		t.Errorf("after the cancellation: %v", got.err)
	}
	next = standBy(t, texts(t, waiting, bus.Leaders), "registry")
	if err := waiting.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-next; got.err == nil || errors.Is(got.err, context.Canceled) || errs.Of(got.err) != errs.StateUnavailable {
		t.Errorf("after the end of the bus: %v", got.err)
	}
}

func TestEarlierIncarnationIsReplaced(t *testing.T) {
	t.Parallel() // it waits
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	old := acquire(t, workers, brief("w1"))
	again := claim("w1")
	again.Replace = func(present text) bool { return present.GetValue() == epochValue(old.Epoch()).GetValue() }
	fresh := acquire(t, workers, again)
	if fresh.Epoch() <= old.Epoch() {
		t.Errorf("epoch %d after %d", fresh.Epoch(), old.Epoch())
	}
	await(t, "the loss of the earlier incarnation", old.Lost())
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

// TestClaimantTriesAgainWhereTheServerDisagrees has a key that is free by the watch
// and held by the server's answer, as where a replica lags behind. No event comes
// afterwards that would wake the claimant.
func TestClaimantTriesAgainWhereTheServerDisagrees(t *testing.T) {
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	old := acquire(t, workers, claim("w1"))
	again := claim("w1")
	asked := 0
	again.Replace = func(text) bool { // of the watch's value, then of answers after it and after EventCaughtUp
		asked++
		return asked == 1 || asked > 3
	}
	if fresh := acquire(t, workers, again); fresh.Epoch() <= old.Epoch() {
		t.Errorf("epoch %d after %d", fresh.Epoch(), old.Epoch())
	}
}

func TestHolderThatIsCutOffLosesToTheOther(t *testing.T) {
	t.Parallel() // it waits
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	addr, cut := relay(t, server.Addr(), nil)
	holder := open(t, bus.Config{URL: addr, Name: "holder"})
	lease := acquire(t, texts(t, holder, bus.Leaders), brief("registry"))
	next := acquiring(testContext(t), texts(t, server, bus.Leaders), claim("registry"))

	cut()
	await(t, "loss", lease.Lost())
	if !errors.Is(lease.Err(), bus.ErrLost) {
		t.Errorf("Err = %v", lease.Err())
	}
	second := next.lease(t)
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

func TestReleaseReportsThatTheKeyIsLeft(t *testing.T) {
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	lease := acquire(t, texts(t, open(t, bus.Config{URL: server.Addr()}), bus.Leaders), claim("registry"))
	closeBus(t, server)
	if err := lease.Release(testContext(t)); errs.Of(err) != errs.StateUnavailable {
		t.Errorf("Release without a server: %v", err)
	}
}

func TestManyAcquireAtOnce(t *testing.T) {
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	const claimants = 32
	var all []standby
	for i := range claimants {
		all = append(all, acquiring(testContext(t), workers, claim(strconv.Itoa(i))))
	}
	epochs := map[uint64]bool{}
	for _, s := range all {
		epochs[s.lease(t).Epoch()] = true
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
