package bus_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/bus"
)

// TestLostAcknowledgementDoesNotLoseTheLease drops the answer to one write of a
// lease that lives for less than an answer may take: the lease is renewed, and
// another attempt writes the value.
func TestLostAcknowledgementDoesNotLoseTheLease(t *testing.T) {
	t.Parallel() // it waits
	for name, write := range map[string]func(context.Context, *bus.Lease[text]) error{
		"of a new value": func(ctx context.Context, lease *bus.Lease[text]) error { return lease.Set(ctx, value("changed")) },
		"of a renewal":   func(context.Context, *bus.Lease[text]) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			server := open(t, bus.Config{Listen: "127.0.0.1:0"})
			var losing atomic.Bool
			lost := make(chan struct{})
			addr, _ := relay(t, server.Addr(), func(message []byte) bool {
				if isAcknowledgement(message, bus.Leaders) && losing.CompareAndSwap(true, false) {
					close(lost)
					return false
				}
				return true
			})
			own := claim("registry")
			own.TTL = 4 * time.Second
			lease := acquire(t, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), own)
			kv := must[jetstream.KeyValue](t)(raw(t, server).KeyValue(ctx, bus.Leaders))

			losing.Store(true)
			_ = write(ctx, lease) // it may fail: a later attempt is made in any case
			await(t, "a lost acknowledgement", lost)
			writes := must[jetstream.KeyWatcher](t)(kv.Watch(ctx, "registry", jetstream.UpdatesOnly()))
			defer func() { _ = writes.Stop() }()
			for range 5 { // longer than the lease lives
				select {
				case entry := <-writes.Updates():
					if entry == nil || entry.Operation() != jetstream.KeyValuePut {
						t.Fatalf("the key has ended: %v", entry)
					}
				case <-lease.Lost():
					t.Fatal(lease.Err())
				}
			}
		})
	}
}

// TestClaimantRecognizesItsOwnLease drops the response to the write that acquires a
// lease: another attempt takes the key before it has ended.
func TestClaimantRecognizesItsOwnLease(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	var dropped atomic.Bool
	addr, _ := relay(t, server.Addr(), func(message []byte) bool {
		return !isAcknowledgement(message, bus.Leaders) || !dropped.CompareAndSwap(false, true)
	})
	events := texts(t, server, bus.Leaders).Watch(ctx)
	expectEvents(t, events, caughtUp)
	own := claim("registry")
	own.TTL = 4 * time.Second
	lease := acquire(t, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), own)
	first := expectEvents(t, events, put("registry", epochValue(lease.Epoch()-1).GetValue()))
	if second := expectEvents(t, events, put("registry", epochValue(lease.Epoch()).GetValue())); second != first+1 {
		t.Errorf("acquired at revision %d after %d", second, first)
	}
}

// TestGrantedLeaseIsReturnedToACanceledCaller cancels a claimant while the server
// grants it the lease: if the lease were not released, others would wait until it
// ends, which is longer than the test does.
func TestGrantedLeaseIsReturnedToACanceledCaller(t *testing.T) {
	ctx := testContext(t)
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	granted, pass := make(chan struct{}), make(chan struct{})
	var held atomic.Bool
	addr, _ := relay(t, server.Addr(), func(message []byte) bool {
		if isAcknowledgement(message, bus.Leaders) && held.CompareAndSwap(false, true) {
			close(granted)
			<-pass
		}
		return true
	})
	claiming, cancel := context.WithCancel(ctx)
	first := acquiring(claiming, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), claim("registry"))
	await(t, "the lease to be granted", granted)
	cancel()
	close(pass)
	if err := first.lease(t).Release(ctx); err != nil {
		t.Fatal(err)
	}
	acquire(t, texts(t, server, bus.Leaders), claim("registry"))
}

// TestSetEndsWithItsContext has an answer never come, although the lease would
// wait for it much longer.
func TestSetEndsWithItsContext(t *testing.T) {
	t.Parallel() // it waits
	ctx := testContext(t)
	server := open(t, bus.Config{Listen: "127.0.0.1:0"})
	var losing atomic.Bool
	lost := make(chan struct{}, 1)
	addr, _ := relay(t, server.Addr(), func(message []byte) bool {
		if !losing.Load() || !isAcknowledgement(message, bus.Leaders) {
			return true
		}
		lost <- struct{}{}
		return false
	})
	lease := acquire(t, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), claim("registry"))
	losing.Store(true)
	setting, cancel := context.WithCancel(ctx)
	go func() {
		<-lost
		cancel()
	}()
	if err := lease.Set(setting, value("changed")); !errors.Is(err, context.Canceled) {
		t.Errorf("Set that was canceled: %v", err)
	}
	losing.Store(false)
	if err := lease.Set(ctx, value("changed")); err != nil {
		t.Errorf("Set again: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
}
