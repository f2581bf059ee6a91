package bus_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
)

// TestValueThatIsSetWhileTheKeyIsAcquiredAnew sets a value just when the key is
// written again with the one before.
func TestValueThatIsSetWhileTheKeyIsAcquiredAnew(t *testing.T) {
	ctx := testContext(t)
	server := open(t, bus.Config{})
	codec, meanwhile := textCodec(), func() {}
	encode := codec.Encode
	codec.Encode = func(v text) ([]byte, error) {
		now := meanwhile
		meanwhile = func() {}
		data, err := encode(v)
		now()
		return data, err
	}
	own := claim("w1")
	own.TTL = time.Hour // nothing is renewed
	own.Replace = func(text) bool { return true }
	r := must[*bus.Registration[text]](t)(must[*bus.Bucket[text]](t)(bus.NewBucket(server, bus.Workers, codec)).Register(ctx, own))
	workers := texts(t, server, bus.Workers)
	acquire(t, workers, own)
	if err := r.Set(ctx, value("earlier")); !errors.Is(err, bus.ErrLost) {
		t.Fatalf("Set by a lease that another has taken over: %v", err)
	}
	meanwhile = func() {
		if err := r.Set(ctx, value("later")); !errors.Is(err, bus.ErrLost) {
			t.Errorf("Set while the key is acquired anew: %v", err)
		}
	}
	events := must[<-chan bus.Event[text]](t)(workers.WatchKey(ctx, "w1"))
	running, stop := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- r.Run(running) }()
	for e := range events {
		if e.Value.GetValue() == "later" {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("what was set is never told")
	}
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}
