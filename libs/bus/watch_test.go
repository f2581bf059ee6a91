package bus_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/bus"
)

// event is a bus.Event in comparable form.
type event struct {
	Kind    bus.EventKind
	Key     string
	Value   string
	Expired bool
	Bad     bool
}

func put(key, v string) event { return event{Kind: bus.EventPut, Key: key, Value: v} }

var caughtUp = event{Kind: bus.EventCaughtUp}

// expectEvents receives as many events as are wanted and compares them. It returns
// the last revision.
func expectEvents(t *testing.T, events <-chan bus.Event[text], want ...event) uint64 {
	t.Helper()
	ctx := testContext(t)
	var got []event
	var revision uint64
	for range want {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("watch ended after %v", got)
			}
			got = append(got, event{e.Kind, e.Key, e.Value.GetValue(), e.Expired, e.Err != nil})
			revision = e.Revision
		case <-ctx.Done():
			t.Fatalf("nothing more after %v, want %v", got, want)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	return revision
}

func TestWatchSendsPresentValuesThenChanges(t *testing.T) {
	ctx := testContext(t)
	b := open(t, bus.Config{})
	models := texts(t, b, bus.Models)
	expectEvents(t, models.Watch(ctx), caughtUp)

	must[uint64](t)(models.Put(ctx, "gone", value("x")))
	must[uint64](t)(models.Put(ctx, "m 1", value("a")))
	put2 := must[bus.Entry[text]](t)(models.Get(ctx, "m 1")).Revision
	if err := models.Delete(ctx, "gone", 0); err != nil {
		t.Fatal(err)
	}
	events := models.Watch(ctx)
	if revision := expectEvents(t, events, put("m 1", "a"), caughtUp); revision != put2+1 {
		t.Errorf("caught up at revision %d, want %d", revision, put2+1)
	}
	revision := must[uint64](t)(models.Put(ctx, "m 1", value("b")))
	if got := expectEvents(t, events, put("m 1", "b")); got != revision {
		t.Errorf("event's revision %d, want %d", got, revision)
	}
	if err := models.Delete(ctx, "m 1", revision); err != nil {
		t.Fatal(err)
	}
	expectEvents(t, events, event{Kind: bus.EventDelete, Key: "m 1"})
}

func TestWatchOfOneKeySendsNothingElse(t *testing.T) {
	ctx := testContext(t)
	models := texts(t, open(t, bus.Config{}), bus.Models)
	must[uint64](t)(models.Put(ctx, "w 1", value("a")))
	must[uint64](t)(models.Put(ctx, "w 2", value("b")))
	events := must[<-chan bus.Event[text]](t)(models.WatchKey(ctx, "w 2"))
	expectEvents(t, events, put("w 2", "b"), caughtUp)
	must[uint64](t)(models.Put(ctx, "w 1", value("c")))
	revision := must[uint64](t)(models.Put(ctx, "w 2", value("d")))
	if got := expectEvents(t, events, put("w 2", "d")); got != revision {
		t.Errorf("event's revision %d, want %d", got, revision)
	}
	expectEvents(t, must[<-chan bus.Event[text]](t)(models.WatchKey(ctx, "w 3")), caughtUp)
}

// TestWatchEndsAmongManyValues ends a watch while more values wait than NATS
// buffers; TestMain sees what is left running.
func TestWatchEndsAmongManyValues(t *testing.T) {
	ctx := testContext(t)
	models := texts(t, open(t, bus.Config{}), bus.Models)
	for i := range 600 {
		must[uint64](t)(models.Put(ctx, strconv.Itoa(i), value("v")))
	}
	for range 8 {
		watched, leave := context.WithCancel(ctx)
		events := models.Watch(watched)
		<-events
		must[[]string](t)(models.Keys(ctx)) // meanwhile NATS's buffer fills
		leave()
		for range events { // until it is closed
		}
	}
}

// TestCanceledWatchesLeaveNoConsumers ends watches while the server makes their
// consumers, and sees that none is left before the time after which the server
// forgets it: the server answers in order, so all that the watches have asked for
// is done when the bus is closed.
func TestCanceledWatchesLeaveNoConsumers(t *testing.T) {
	leavesNoConsumers(t, func(ctx context.Context, leave func(), models *bus.Bucket[text]) {
		first := models.Watch(ctx)
		for range 4 {
			models.Watch(ctx)
		}
		<-first // while the others begin
		leave()
	})
}

// leavesNoConsumers watches a bucket with a key again and again, each time until the
// test leaves.
func leavesNoConsumers(t *testing.T, watch func(ctx context.Context, leave func(), models *bus.Bucket[text])) {
	t.Helper()
	ctx := testContext(t)
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	b := open(t, bus.Config{URL: server.Addr()})
	models := texts(t, b, bus.Models)
	must[uint64](t)(models.Put(ctx, "m", value("v")))
	for range 50 {
		watched, leave := context.WithCancel(ctx)
		watch(watched, leave, models)
	}
	closeBus(t, b)
	stream := must[jetstream.Stream](t)(raw(t, server).Stream(ctx, bus.StreamName(bus.Models)))
	if left := must[*jetstream.StreamInfo](t)(stream.Info(ctx)).State.Consumers; left != 0 {
		t.Errorf("%d consumers are left", left)
	}
}

// TestKeysThatAreWrittenAgainAreListed lists keys, and watches them, while others
// write each of them again and again: the list of NATS itself lacks some.
func TestKeysThatAreWrittenAgainAreListed(t *testing.T) {
	ctx := testContext(t)
	models := texts(t, open(t, bus.Config{}), bus.Models)
	const keys = 100
	for i := range keys {
		must[uint64](t)(models.Put(ctx, strconv.Itoa(i), value("v")))
	}
	writing, leave := context.WithCancel(ctx)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := w; writing.Err() == nil; i += 4 {
				_, _ = models.Put(writing, strconv.Itoa(i%keys), value(strconv.Itoa(i)))
			}
		})
	}
	for range 30 {
		if n := len(must[[]string](t)(models.Keys(ctx))); n != keys {
			t.Errorf("%d keys are listed, want %d", n, keys)
		}
		watched, stop := context.WithCancel(ctx)
		seen, revisions := map[string]bool{}, map[string]uint64{}
		for e := range models.Watch(watched) {
			if e.Kind == bus.EventCaughtUp {
				break
			}
			if e.Kind != bus.EventPut || e.Revision < revisions[e.Key] {
				t.Errorf("event %+v after revision %d", e, revisions[e.Key])
			}
			seen[e.Key], revisions[e.Key] = true, e.Revision
		}
		stop()
		if len(seen) != keys {
			t.Errorf("a watch has sent %d keys when it has caught up, want %d", len(seen), keys)
		}
	}
	leave()
	writers.Wait()
}

// TestCanceledListsLeaveNoConsumers is the same as for watches, for [bus.Bucket.Keys].
func TestCanceledListsLeaveNoConsumers(t *testing.T) {
	leavesNoConsumers(t, func(ctx context.Context, leave func(), models *bus.Bucket[text]) {
		var lists sync.WaitGroup
		ended := make(chan struct{}, 5)
		for range cap(ended) {
			lists.Go(func() {
				_, _ = models.Keys(ctx)
				ended <- struct{}{}
			})
		}
		<-ended // while the others begin
		leave()
		lists.Wait()
	})
}

// A caller that watches again when a watch has ended does so while the bus closes,
// and after it has.
func TestWatchThatBeginsWhileTheBusCloses(t *testing.T) {
	b := open(t, bus.Config{})
	bucket := texts(t, b, bus.Workers)
	first := bucket.Watch(t.Context())
	var again sync.WaitGroup
	again.Go(func() {
		for range first {
		}
		for range bucket.Watch(t.Context()) {
		}
	})
	closeBus(t, b)
	again.Wait()
}
