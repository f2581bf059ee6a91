// Package leader finds who acts in a role that only one may have: the leading
// registry, or the scheduler that holds a pool. It goes by the bucket leaders
// alone, so that callers follow a failover without asking anybody.
package leader

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Registry is the role of the leading registry.
const Registry = "registry"

// Pool is the role of the scheduler that holds a pool.
func Pool(name string) string { return "pool." + name }

// Holder is who acts in a role. The zero value is nobody.
type Holder struct {
	// ID is the process's.
	ID string
	// Address is where its gRPC for the other services listens, as host:port or
	// unix:path; empty in one process.
	Address string
	// Epoch is that of its lease; a later holder has a higher one.
	Epoch uint64
}

// Finder knows a role's present holder while it runs. While the store is away
// it keeps to the last that it heard of. It is safe for concurrent use.
type Finder struct {
	bus  *bus.Bus
	role string

	mu      sync.Mutex
	present Holder        // guarded by mu
	changed chan struct{} // closed and replaced at each change; guarded by mu
}

// New makes a finder that knows nobody before Run.
func New(b *bus.Bus, role string) *Finder {
	return &Finder{bus: b, role: role, changed: make(chan struct{})}
}

// Role is the role whose holder is looked for.
func (f *Finder) Role() string { return f.role }

// Run follows the role until ctx is done, which gives nil.
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
	if f.present == h {
		return
	}
	f.present = h
	close(f.changed)
	f.changed = make(chan struct{})
}

// Present returns the holder, which is the zero value while there is none, and
// a channel that is closed when another holds the role, or nobody.
func (f *Finder) Present() (Holder, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.present, f.changed
}

// Wait returns the holder as soon as there is one, and what [Finder.Present]
// does; ok is false if ctx ended before.
func (f *Finder) Wait(ctx context.Context) (h Holder, changed <-chan struct{}, ok bool) {
	for {
		if h, changed = f.Present(); h != (Holder{}) {
			return h, changed, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return h, changed, false
		}
	}
}

const (
	// firstPause and lastPause are how long to wait after a holder that cannot
	// be met: doubling, less up to a half at random, until another acts in the
	// role.
	firstPause, lastPause = 20 * time.Millisecond, time.Second
	// lasting is how long a meeting takes after which the holder is met again
	// at once. One that ends sooner may do so each time.
	lasting = time.Second
)

// Follow has meet meet each holder of the role, until ctx is done: again as
// soon as it returns, or after a pause if it fails or was short. The context
// that meet gets is the holder's tenure: it ends with ctx, or when somebody else
// acts in the role.
func (f *Finder) Follow(ctx context.Context, meet func(tenure context.Context, h Holder) error) {
	var last Holder
	for pause := firstPause; ctx.Err() == nil; {
		holder, changed, ok := f.Wait(ctx)
		if !ok {
			return
		}
		if holder != last {
			last, pause = holder, firstPause
		}
		tenure, over := f.tenure(ctx, holder)
		begun := time.Now()
		err := meet(tenure, holder)
		over()
		if err == nil && time.Since(begun) >= lasting {
			pause = firstPause
			continue
		}
		lifecycle.PauseUntil(ctx, changed, pause-rand.N(pause/2))
		pause = min(2*pause, lastPause)
	}
}

// tenure returns a context that ends with ctx, or when somebody else than the
// given holder acts in the role. That nobody does ends nothing: where the store
// is away the holder goes on. The caller calls end when it is done.
func (f *Finder) tenure(ctx context.Context, of Holder) (tenure context.Context, end context.CancelFunc) {
	tenure, end = context.WithCancel(ctx)
	go func() { // ends with tenure
		defer end()
		for {
			present, changed := f.Present()
			if present != of && present.Epoch >= of.Epoch {
				return
			}
			select {
			case <-changed:
			case <-tenure.Done():
				return
			}
		}
	}()
	return tenure, end
}
