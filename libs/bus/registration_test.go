package bus_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
)

// TestValueThatIsSetWhileTheKeyIsAcquiredAgain sets a value just when the key is
// written again with the one before.
func TestValueThatIsSetWhileTheKeyIsAcquiredAgain(t *testing.T) {
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
		t.Fatalf("Set under a lease that another has replaced: %v", err)
	}
	meanwhile = func() {
		if err := r.Set(ctx, value("later")); !errors.Is(err, bus.ErrLost) {
			t.Errorf("Set while the key is acquired again: %v", err)
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
		t.Error("the value that was set is never sent")
	}
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}

// TestTheEarlierOfTwoWithOneIDGivesUp runs both: they do not replace each other
// again and again.
func TestTheEarlierOfTwoWithOneIDGivesUp(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	workers := texts(t, open(t, bus.Config{}), bus.Workers)
	own := brief("w1")
	own.Replace = func(text) bool { return true }
	own.Epoch = func(v text) uint64 {
		epoch, err := strconv.ParseUint(v.GetValue(), 10, 64)
		if err != nil {
			t.Error(err)
		}
		return epoch
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	run := func() (*bus.Registration[text], <-chan error) {
		r := must[*bus.Registration[text]](t)(workers.Register(ctx, own))
		ended := make(chan error, 1)
		go func() { ended <- r.Run(running) }()
		return r, ended
	}
	_, earlier := run()
	later, kept := run()
	select {
	case err := <-earlier:
		if errs.Of(err) != errs.AlreadyExists || !strings.Contains(err.Error(), `"w1"`) {
			t.Errorf("the earlier one: %v", err)
		}
	case err := <-kept:
		t.Errorf("the later one: %v", err)
	case <-ctx.Done():
		t.Fatal("both go on")
	}
	if err := later.Set(ctx, value(strconv.FormatUint(later.Epoch(), 10))); err != nil {
		t.Errorf("the later one has not the key: %v", err)
	}
	stop()
	if err := <-kept; err != nil {
		t.Error(err)
	}
}
