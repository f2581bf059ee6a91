package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/bus"
)

// delicate is the time to live of a lease that ends before an answer that never comes
// would be given up, and perhaps when the process stands still.
const delicate = 4 * time.Second

// pulse knows for how long the process stood still.
type pulse struct {
	mu      sync.Mutex
	last    time.Time     // guarded by mu
	longest time.Duration // guarded by mu
}

// feel takes the pulse until the test ends.
func feel(t *testing.T) *pulse {
	p := &pulse{last: time.Now()}
	ended := make(chan struct{})
	beats := time.NewTicker(delicate / 100)
	go func() {
		defer close(ended)
		defer beats.Stop()
		for t.Context().Err() == nil {
			select {
			case <-beats.C:
				p.beat()
			case <-t.Context().Done():
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return p
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.longest, p.last = max(p.longest, now.Sub(p.last)), now
}

// stopped reports whether the process stood still for so long that a delicate lease may
// have ended.
func (p *pulse) stopped() bool {
	p.beat()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.longest > delicate/8
}

// whileAwake has a part of a test tell what is wrong, and begins again where that is what
// a process which stood still would see.
func whileAwake(t *testing.T, part func(t *testing.T) (wrong string)) {
	t.Helper()
	for {
		p := feel(t)
		switch wrong := part(t); {
		case wrong == "":
			return
		case !p.stopped():
			t.Fatal(wrong)
		default:
			t.Log("the process stood still, and so:", wrong)
		}
	}
}

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
			whileAwake(t, func(t *testing.T) string { return loseAcknowledgement(t, write) })
		})
	}
}

func loseAcknowledgement(t *testing.T, write func(context.Context, *bus.Lease[text]) error) (wrong string) {
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
	own.TTL = delicate
	lease := acquire(t, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), own)
	kv := must[jetstream.KeyValue](t)(raw(t, server).KeyValue(ctx, bus.Leaders))

	losing.Store(true)
	_ = write(ctx, lease) // it may fail: a later attempt is made in any case
	select {
	case <-lost:
	case <-lease.Lost(): // before anything was sent
		return lease.Err().Error()
	}
	writes := must[jetstream.KeyWatcher](t)(kv.Watch(ctx, "registry", jetstream.UpdatesOnly()))
	defer func() { _ = writes.Stop() }()
	for range 5 { // longer than the lease lives
		select {
		case entry := <-writes.Updates():
			if entry == nil || entry.Operation() != jetstream.KeyValuePut {
				return fmt.Sprintf("the key has ended: %v", entry)
			}
		case <-lease.Lost():
			return lease.Err().Error()
		}
	}
	return ""
}

// TestClaimantRecognizesItsOwnLease drops the response to the write that acquires a
// lease: another attempt takes the key before it has ended.
func TestClaimantRecognizesItsOwnLease(t *testing.T) {
	t.Parallel() // it waits
	whileAwake(t, func(t *testing.T) (wrong string) {
		ctx := testContext(t)
		server := open(t, bus.Config{Listen: "127.0.0.1:0"})
		var dropped atomic.Bool
		addr, _ := relay(t, server.Addr(), func(message []byte) bool {
			return !isAcknowledgement(message, bus.Leaders) || !dropped.CompareAndSwap(false, true)
		})
		events := texts(t, server, bus.Leaders).Watch(ctx)
		expectEvents(t, events, caughtUp)
		own := claim("registry")
		own.TTL = delicate
		lease := acquire(t, texts(t, open(t, bus.Config{URL: addr}), bus.Leaders), own)
		var written []uint64
		for e := range events {
			written = append(written, e.Revision)
			if e.Value.GetValue() == epochValue(lease.Epoch()).GetValue() {
				break
			}
		}
		return cmp.Diff([]uint64{lease.Epoch() - 1, lease.Epoch()}, written)
	})
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
