package control

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Retry delays of Follow and of calls: exponential, less up to a half at
// random.
const (
	firstDelay = 20 * time.Millisecond
	maxDelay   = time.Second
)

// stableAfter is how long a session must last for the next one to begin without
// a delay. A shorter one may end each time.
const stableAfter = time.Second

// Follow calls session with each holder of the role, until ctx is done: again as
// soon as it returns, or after a delay if it failed or was short. The leadership
// that session gets ends with ctx, or when another process holds the role.
func (f *Finder) Follow(ctx context.Context, session func(leadership context.Context, h Holder) error) {
	var last Holder
	for delay := firstDelay; ctx.Err() == nil; {
		holder, changed, ok := f.Wait(ctx)
		if !ok {
			return
		}
		if holder != last {
			last, delay = holder, firstDelay
		}
		leadership, cancel := f.leadership(ctx, holder)
		started := time.Now()
		err := session(leadership, holder)
		cancel()
		if err == nil && time.Since(started) >= stableAfter {
			delay = firstDelay
			continue
		}
		lifecycle.PauseUntil(ctx, changed, delay-rand.N(delay/2))
		delay = min(2*delay, maxDelay)
	}
}

// leadership returns a context that ends with ctx, or when a later holder than h
// has the role. A role without a holder ends nothing: while the store is away
// the holder goes on. The caller must call cancel.
func (f *Finder) leadership(ctx context.Context, h Holder) (leadership context.Context, cancel context.CancelFunc) {
	leadership, cancel = context.WithCancel(ctx)
	go func() { // ends with leadership
		defer cancel()
		for {
			current, changed := f.Current()
			if current != h && current.Epoch >= h.Epoch {
				return
			}
			select {
			case <-changed:
			case <-leadership.Done():
				return
			}
		}
	}()
	return leadership, cancel
}
