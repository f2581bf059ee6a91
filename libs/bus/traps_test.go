package bus_test

import (
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

// TestServerTakesTimeToLiveAsWeExpect pins the two facts of NATS on which
// leases rest. A "fence" written with the same time to live afterwards tells,
// without a clock, that the server's own time has come: where the fence has
// ended and the value before it has not, the value lives on.
func TestServerTakesTimeToLiveAsWeExpect(t *testing.T) {
	js := raw(t, open(t, bus.Config{Listen: "127.0.0.1:0"}))
	ctx := testContext(t)
	const ttl = time.Second
	second := func(t *testing.T, kv jetstream.KeyValue) {
		must[uint64](t)(kv.Create(ctx, "lease", nil, jetstream.KeyTTL(ttl)))
		must[uint64](t)(kv.Update(ctx, "lease", []byte("renewed"), 1))
	}
	first := func(t *testing.T, kv jetstream.KeyValue) {
		must[uint64](t)(kv.Create(ctx, "lease", nil, jetstream.KeyTTL(ttl)))
	}
	fences := must[jetstream.KeyValue](t)(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "fences", LimitMarkerTTL: time.Minute}))
	tests := []struct {
		name    string
		history uint8
		write   func(*testing.T, jetstream.KeyValue)
		lives   bool
	}{
		{"one value per key keeps the time to live", 1, first, false},
		{"more values per key raise it to that of marks", 2, first, true},
		{"a plain write removes it", 1, second, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kv := must[jetstream.KeyValue](t)(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: "trap", History: tt.history, LimitMarkerTTL: time.Minute,
			}))
			defer func() { _ = js.DeleteKeyValue(ctx, "trap") }()
			tt.write(t, kv)
			must[uint64](t)(fences.Create(ctx, "fence", nil, jetstream.KeyTTL(2*ttl)))
			awaitEnd(t, fences, "fence")
			_, err := kv.Get(ctx, "lease")
			if lives := err == nil; lives != tt.lives {
				t.Errorf("the value lives on: %t, want %t (%v)", lives, tt.lives, err)
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

func TestWatchTellsUnreadableValues(t *testing.T) {
	b := open(t, bus.Config{Listen: "127.0.0.1:0"})
	ctx := testContext(t)
	kv := must[jetstream.KeyValue](t)(raw(t, b).KeyValue(ctx, bus.Models))
	must[uint64](t)(kv.Put(ctx, "m", []byte("{not JSON")))
	must[uint64](t)(kv.Put(ctx, "=zz", []byte(`"v"`)))
	models := texts(t, b, bus.Models)
	must[uint64](t)(models.Put(ctx, "good", value("v")))
	bad := func(key string) told { return told{Kind: bus.EventPut, Key: key, Bad: true} }
	hears(t, models.Watch(ctx), bad("m"), bad("=zz"), put("good", "v"), caughtUp)
}
