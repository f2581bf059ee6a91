package bus_test

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
)

// told is an event in comparable form.
type told struct {
	Kind    bus.EventKind
	Key     string
	Value   string
	Expired bool
	Bad     bool
}

func put(key, v string) told { return told{Kind: bus.EventPut, Key: key, Value: v} }

var caughtUp = told{Kind: bus.EventCaughtUp}

// hears receives as many events as are wanted and compares them. It returns
// the last revision.
func hears(t *testing.T, events <-chan bus.Event[text], want ...told) uint64 {
	t.Helper()
	ctx := testContext(t)
	var got []told
	var revision uint64
	for range want {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("watch ended after %v", got)
			}
			got = append(got, told{e.Kind, e.Key, e.Value.GetValue(), e.Expired, e.Err != nil})
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

func TestWatchTellsPresentThenChanges(t *testing.T) {
	ctx := testContext(t)
	b := open(t, bus.Config{})
	models := texts(t, b, bus.Models)
	hears(t, models.Watch(ctx), caughtUp)

	must[uint64](t)(models.Put(ctx, "gone", value("x")))
	must[uint64](t)(models.Put(ctx, "m 1", value("a")))
	put2 := must[bus.Entry[text]](t)(models.Get(ctx, "m 1")).Revision
	if err := models.Delete(ctx, "gone", 0); err != nil {
		t.Fatal(err)
	}
	events := models.Watch(ctx)
	if revision := hears(t, events, put("m 1", "a"), caughtUp); revision != put2+1 {
		t.Errorf("caught up at revision %d, want %d", revision, put2+1)
	}
	revision := must[uint64](t)(models.Put(ctx, "m 1", value("b")))
	if got := hears(t, events, put("m 1", "b")); got != revision {
		t.Errorf("event's revision %d, want %d", got, revision)
	}
	if err := models.Delete(ctx, "m 1", revision); err != nil {
		t.Fatal(err)
	}
	hears(t, events, told{Kind: bus.EventDelete, Key: "m 1"})
}

func TestWatchOfOneKeyTellsNothingElse(t *testing.T) {
	ctx := testContext(t)
	models := texts(t, open(t, bus.Config{}), bus.Models)
	must[uint64](t)(models.Put(ctx, "w 1", value("a")))
	must[uint64](t)(models.Put(ctx, "w 2", value("b")))
	events := must[<-chan bus.Event[text]](t)(models.WatchKey(ctx, "w 2"))
	hears(t, events, put("w 2", "b"), caughtUp)
	must[uint64](t)(models.Put(ctx, "w 1", value("c")))
	revision := must[uint64](t)(models.Put(ctx, "w 2", value("d")))
	if got := hears(t, events, put("w 2", "d")); got != revision {
		t.Errorf("event's revision %d, want %d", got, revision)
	}
	hears(t, must[<-chan bus.Event[text]](t)(models.WatchKey(ctx, "w 3")), caughtUp)
}

// TestWatchEndsAmongManyValues leaves a watch while more values wait than NATS
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

// Whoever watches again when a watch has ended does so while the bus closes, and
// after it has.
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
