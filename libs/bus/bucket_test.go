package bus_test

import (
	"errors"
	"strings"
	"testing"

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

func TestLargeListsFit(t *testing.T) {
	ctx := testContext(t)
	lists := texts(t, open(t, bus.Config{}), bus.Assignments)
	want := strings.Repeat("one of many models, ", 1<<18)
	events := lists.Watch(ctx)
	hears(t, events, caughtUp)
	must[uint64](t)(lists.Put(ctx, "w", value(want)))
	hears(t, events, put("w", want))
	if got := must[bus.Entry[text]](t)(lists.Get(ctx, "w")); got.Value.GetValue() != want {
		t.Errorf("got %d bytes, want %d", len(got.Value.GetValue()), len(want))
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
