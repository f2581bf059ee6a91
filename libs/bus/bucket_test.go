package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
)

func TestBucketKeepsValuesByRevision(t *testing.T) {
	ctx := testContext(t)
	models := texts(t, open(t, bus.Config{}), bus.Models)

	if _, err := models.Get(ctx, "m"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get of nothing: %v", err)
	}
	first := must[uint64](t)(models.Create(ctx, "m", value("a")))
	if _, err := models.Create(ctx, "m", value("b")); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Create over a value: %v", err)
	}
	second := must[uint64](t)(models.Update(ctx, "m", value("b"), first))
	if _, err := models.Update(ctx, "m", value("c"), first); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Update of an old revision: %v", err)
	}
	got := must[bus.Entry[text]](t)(models.Get(ctx, "m"))
	if got.Value.GetValue() != "b" || got.Revision != second || got.Key != "m" {
		t.Errorf("Get = %v", got)
	}
	if err := models.Delete(ctx, "m", first); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Delete of an old revision: %v", err)
	}
	if err := models.Delete(ctx, "m", second); err != nil {
		t.Error(err)
	}
	if _, err := models.Get(ctx, "m"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Get after Delete: %v", err)
	}
	must[uint64](t)(models.Create(ctx, "m", value("again")))
	must[uint64](t)(models.Put(ctx, "ä b", value("x")))
	if diff := cmp.Diff([]string{"m", "ä b"}, must[[]string](t)(models.Keys(ctx))); diff != "" {
		t.Error(diff)
	}
}

// Values that are written for a time end after it, also those of an update that were
// written for longer, and begin again.
func TestValuesEndAfterTheirTime(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	quotas := texts(t, open(t, bus.Config{}), bus.Quotas)
	events := quotas.Watch(ctx)
	must[uint64](t)(quotas.CreateFor(ctx, "short", value("a"), 300*time.Millisecond)) // NATS takes whole seconds
	long := must[uint64](t)(quotas.CreateFor(ctx, "long", value("a"), time.Hour))
	must[uint64](t)(quotas.UpdateFor(ctx, "long", value("b"), long, time.Second))
	if _, err := quotas.UpdateFor(ctx, "long", value("c"), long, time.Hour); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Update of an old revision: %v", err)
	}
	if _, err := quotas.CreateFor(ctx, "long", value("c"), time.Hour); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("Create over a value: %v", err)
	}
	ended := make(map[string]bool)
	for e := range events {
		if ended[e.Key] = ended[e.Key] || e.Kind == bus.EventDelete; ended["short"] && ended["long"] {
			break
		}
	}
	must[uint64](t)(quotas.CreateFor(ctx, "short", value("d"), time.Hour))
}

func TestBatchReturnsTheResultOfEach(t *testing.T) {
	ctx := testContext(t)
	parts := texts(t, open(t, bus.Config{}), bus.Assignments)
	kept := must[uint64](t)(parts.Create(ctx, "w/kept", value("a")))
	gone := must[uint64](t)(parts.Create(ctx, "w/gone", value("a")))
	if err := parts.Delete(ctx, "w/gone", gone); err != nil {
		t.Fatal(err)
	}
	writes := []bus.Write[text]{
		{Key: "w/new", Value: value("b")},
		{Key: "w/gone", Value: value("b")},
		{Key: "w/kept", Value: value("b")},
		{Key: "w/absent", Value: value("b"), Replaces: kept},
		{Key: "v/any", Value: value("b"), Any: true},
	}
	for i := range 200 { // more than are in flight at a time
		writes = append(writes, bus.Write[text]{Key: fmt.Sprintf("many/%d", i), Value: value("c")})
	}
	written := parts.Batch(ctx, writes)
	for i, w := range writes {
		if conflict := errors.Is(written[i].Err, bus.ErrConflict); conflict != (i == 2 || i == 3) {
			t.Errorf("%s: %+v", w.Key, written[i])
		}
		if got, err := parts.Get(ctx, w.Key); written[i].Err == nil && (err != nil || got.Revision != written[i].Revision) {
			t.Errorf("%s is %v, %v; want revision %d", w.Key, got, err, written[i].Revision)
		}
	}
	deleted := parts.Batch(ctx, []bus.Write[text]{{Key: "w/kept", Delete: true, Replaces: kept}, {Key: "w/new", Delete: true, Replaces: kept}})
	if deleted[0].Err != nil || !errors.Is(deleted[1].Err, bus.ErrConflict) {
		t.Errorf("deletions %+v", deleted)
	}
}

func TestOwnersAreWatchedAlone(t *testing.T) {
	ctx := testContext(t)
	parts := texts(t, open(t, bus.Config{}), bus.Instances)
	must[uint64](t)(parts.Put(ctx, "node.1/team/m", value("mine")))
	must[uint64](t)(parts.Put(ctx, "node/1.m", value("another's")))
	must[uint64](t)(parts.Put(ctx, "node.1/", value("head")))
	events := must[<-chan bus.Event[text]](t)(parts.WatchOwner(ctx, "node.1"))
	expectEvents(t, events, put("node.1/team/m", "mine"))
	expectEvents(t, events, put("node.1/", "head"))
	expectEvents(t, events, caughtUp)
	if _, err := texts(t, open(t, bus.Config{}), bus.Models).WatchOwner(ctx, "m"); errs.Of(err) != errs.Bug {
		t.Errorf("a bucket without owners is watched by owner: %v", err)
	}
	for owner, ok := range map[string]bool{"node.1": true, "": false, "a/b": false} {
		if err := bus.CheckOwner(owner); (err == nil) != ok {
			t.Errorf("CheckOwner(%q) = %v", owner, err)
		}
	}
}

func TestBucketRefuses(t *testing.T) {
	ctx := testContext(t)
	b := open(t, bus.Config{})
	models, leaders := texts(t, b, bus.Models), texts(t, b, bus.Leaders)
	put := func(bucket *bus.Bucket[text], key, v string) func() error {
		return func() error { _, err := bucket.Put(ctx, key, value(v)); return err }
	}
	tests := []struct {
		name string
		do   func() error
		want errs.Reason
	}{
		{"a value over the bucket's bound", put(models, "m", strings.Repeat("v", 1<<20)), errs.BodyTooLarge},
		{"a key over NATS's line", put(models, strings.Repeat(" ", 400), "v"), errs.InvalidParameter},
		{"a lasting value among leases", put(leaders, "registry", "v"), errs.Bug},
		{"a bucket outside the table", func() error {
			_, err := bus.NewBucket(b, "nonesuch", textCodec())
			return err
		}, errs.Bug},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.do(); errs.Of(err) != tt.want {
				t.Errorf("got %v, want reason %s", err, tt.want)
			}
		})
	}
}
