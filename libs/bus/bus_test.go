package bus_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nereid-serving/nereid/libs/bus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for a real server; no test measures it.
const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open opens a bus with its buckets and closes it with the test.
func open(t *testing.T, cfg bus.Config) *bus.Bus {
	t.Helper()
	cfg.Log = zaptest.NewLogger(t)
	b, err := bus.Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBus(t, b) })
	if err := b.EnsureBuckets(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return b
}

func closeBus(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

type text = *wrapperspb.StringValue

func value(s string) text { return wrapperspb.String(s) }

// texts gives a bucket of strings, which are JSON strings in the store.
func texts(t *testing.T, b *bus.Bus, name string) *bus.Bucket[text] {
	t.Helper()
	bucket, err := bus.NewBucket(b, name, bus.ProtoJSON[text]())
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
