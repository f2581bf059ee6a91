package control

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// RegistryRole is the role of the leading registry.
const RegistryRole = "registry"

// PoolRole is the role of the scheduler that holds a pool.
func PoolRole(pool string) string { return "pool." + pool }

// Holder is the process that holds a role's lease. The zero value is none.
type Holder struct {
	// ID is the process's.
	ID string
	// Address is where its gRPC for the other services listens, as host:port or
	// unix:path; empty in one process.
	Address string
	// Epoch is that of its lease; a later holder has a higher one.
	Epoch uint64
}

// Finder knows a role's holder while it runs. It reads only the bucket leaders, so callers
// follow a failover without calling anybody. While the store is unavailable it retains the last
// known holder. It is safe for concurrent use.
type Finder struct {
	bus  *bus.Bus
	role string

	mu      sync.Mutex
	current Holder        // guarded by mu
	changed chan struct{} // closed and replaced at each change; guarded by mu
}

// NewFinder makes a finder that knows no holder before Run.
func NewFinder(b *bus.Bus, role string) *Finder {
	return &Finder{bus: b, role: role, changed: make(chan struct{})}
}

// Role returns the role whose holder the finder watches.
func (f *Finder) Role() string { return f.role }

// Run watches the role until ctx is done, which gives nil.
func (f *Finder) Run(ctx context.Context) error {
	bucket, err := bus.NewBucket(f.bus, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		return err
	}
	events, err := bucket.WatchKey(ctx, f.role)
	if err != nil {
		return err
	}
	for e := range events {
		switch {
		case e.Kind == bus.EventDelete:
			f.set(Holder{})
		case e.Kind == bus.EventPut && e.Err == nil:
			f.set(holder(e))
		}
	}
	return nil
}

// holder reads a lease, which does not state its epoch in the very write that
// acquires it.
func holder(e bus.Event[*nereidv1.LeaderValue]) Holder {
	h := Holder{ID: e.Value.GetHolder(), Address: e.Value.GetAddress(), Epoch: e.Value.GetEpoch()}
	if h.Epoch == 0 {
		h.Epoch = e.Revision
	}
	return h
}

func (f *Finder) set(h Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == h {
		return
	}
	f.current = h
	close(f.changed)
	f.changed = make(chan struct{})
}

// Current returns the holder, the zero value while there is none, and a channel
// that is closed when the holder changes.
func (f *Finder) Current() (Holder, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current, f.changed
}

// Wait returns as [Finder.Current] does, as soon as there is a holder; ok is
// false if ctx ended before.
func (f *Finder) Wait(ctx context.Context) (h Holder, changed <-chan struct{}, ok bool) {
	for {
		if h, changed = f.Current(); h != (Holder{}) {
			return h, changed, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return h, changed, false
		}
	}
}
