package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/bus"
)

// raw is JetStream of a listening bus without this package in between.
func raw(t *testing.T, b *bus.Bus) jetstream.JetStream {
	t.Helper()
	conn := must[*nats.Conn](t)(nats.Connect(b.Addr()))
	t.Cleanup(conn.Close)
	return must[jetstream.JetStream](t)(jetstream.New(conn))
}

// TestServerHandlesTimeToLiveAsExpected pins the two facts of NATS on which
// leases rest. A "fence" with a longer time to live, written afterwards, shows
// without a clock of ours that the value's time has passed.
func TestServerHandlesTimeToLiveAsExpected(t *testing.T) {
	t.Parallel() // it waits
	js := raw(t, open(t, bus.Config{Listen: "127.0.0.1:0"}))
	ctx := testContext(t)
	const ttl = time.Second
	renewed := func(ctx context.Context, t *testing.T, kv jetstream.KeyValue) {
		for {
			revision := must[uint64](t)(kv.Create(ctx, "lease", nil, jetstream.KeyTTL(ttl)))
			if _, err := kv.Update(ctx, "lease", []byte("renewed"), revision); err == nil {
				return
			} else if !errors.Is(err, jetstream.ErrKeyExists) { // else it has ended already
				t.Fatal(err)
			}
		}
	}
	created := func(ctx context.Context, t *testing.T, kv jetstream.KeyValue) {
		must[uint64](t)(kv.Create(ctx, "lease", nil, jetstream.KeyTTL(ttl)))
	}
	fences := must[jetstream.KeyValue](t)(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "fences", LimitMarkerTTL: time.Minute}))
	tests := []struct {
		name    string
		history uint8
		write   func(context.Context, *testing.T, jetstream.KeyValue)
		lives   bool
	}{
		{"one value per key keeps the time to live", 1, created, false},
		{"more values per key raise it to that of marks", 2, created, true},
		{"a plain write removes it", 1, renewed, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			name := strings.ReplaceAll(tt.name, " ", "_")
			kv := must[jetstream.KeyValue](t)(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: name, History: tt.history, LimitMarkerTTL: time.Hour, // longer than a test waits
			}))
			tt.write(ctx, t, kv)
			if !tt.lives {
				awaitEnd(t, kv, "lease")
				return
			}
			must[uint64](t)(fences.Create(ctx, name, nil, jetstream.KeyTTL(2*ttl)))
			awaitEnd(t, fences, name)
			if _, err := kv.Get(ctx, "lease"); err != nil {
				t.Errorf("the value does not live on: %v", err)
			}
		})
	}
}

func awaitEnd(t *testing.T, kv jetstream.KeyValue, key string) {
	t.Helper()
	w := must[jetstream.KeyWatcher](t)(kv.Watch(testContext(t), key))
	defer func() { _ = w.Stop() }()
	for entry := range w.Updates() {
		if entry != nil && entry.Operation() != jetstream.KeyValuePut {
			return
		}
	}
	t.Fatal("watch ended")
}

func TestWatchReportsUnreadableValues(t *testing.T) {
	b := open(t, bus.Config{Listen: "127.0.0.1:0"})
	ctx := testContext(t)
	kv := must[jetstream.KeyValue](t)(raw(t, b).KeyValue(ctx, bus.Models))
	must[uint64](t)(kv.Put(ctx, "m", []byte("{not JSON")))
	must[uint64](t)(kv.Put(ctx, "=zz", []byte(`"v"`)))
	models := texts(t, b, bus.Models)
	must[uint64](t)(models.Put(ctx, "good", value("v")))
	bad := func(key string) event { return event{Kind: bus.EventPut, Key: key, Bad: true} }
	expectEvents(t, models.Watch(ctx), bad("m"), bad("=zz"), put("good", "v"), caughtUp)
}

// TestAFullStreamTakesNewValuesOfItsKeys pins the fact on which the bound of a bucket's keys
// rests: a full stream refuses other keys alone.
func TestAFullStreamTakesNewValuesOfItsKeys(t *testing.T) {
	b := open(t, bus.Config{Listen: "127.0.0.1:0"})
	js, ctx := raw(t, b), testContext(t)
	quotas := must[jetstream.Stream](t)(js.Stream(ctx, bus.StreamName(bus.Quotas)))
	config := quotas.CachedInfo().Config
	if config.MaxMsgs <= 0 || config.MaxMsgs > 1_000_000 {
		t.Errorf("the bucket may have %d keys", config.MaxMsgs)
	}
	config.MaxMsgs = 2
	must[jetstream.Stream](t)(js.UpdateStream(ctx, config))
	of := texts(t, b, bus.Quotas)
	first := must[uint64](t)(of.CreateFor(ctx, "a", value("1"), time.Hour))
	must[uint64](t)(of.CreateFor(ctx, "b", value("1"), time.Hour))
	if _, err := of.CreateFor(ctx, "c", value("1"), time.Hour); err == nil || errors.Is(err, bus.ErrConflict) {
		t.Errorf("a key too many: %v", err)
	}
	must[uint64](t)(of.UpdateFor(ctx, "a", value("2"), first, time.Hour))
}
