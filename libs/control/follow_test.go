package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Sessions that all end at once do not follow each other without end: delays
// grow to maxDelay. After a session that lasted the next one begins at once.
func TestShortSessionsAreDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFinder(nil, RegistryRole)
		f.set(Holder{ID: "a", Epoch: 1})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		sessions := 0
		f.Follow(ctx, func(context.Context, Holder) error { sessions++; return nil })
		if most := 2*30 + 12; sessions < 30 || sessions > most {
			t.Errorf("%d sessions in half a minute, want 30 to %d", sessions, most)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var ended time.Time
		f.Follow(ctx, func(leadership context.Context, _ Holder) error {
			if !ended.IsZero() && time.Since(ended) > 0 {
				t.Errorf("the next session began after %v", time.Since(ended))
			}
			select {
			case <-leadership.Done():
			case <-time.After(stableAfter):
			}
			ended = time.Now()
			return nil
		})
	})
}

// The session with another holder begins at once, whatever the delay after the
// one before.
func TestNextHolderIsFollowedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFinder(nil, RegistryRole)
		f.set(Holder{ID: "a", Epoch: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var took time.Duration
		changed := time.Now()
		go func() {
			<-time.After(10*time.Second + time.Millisecond) // in the midst of a delay
			changed = time.Now()
			f.set(Holder{ID: "b", Epoch: 2})
		}()
		f.Follow(ctx, func(_ context.Context, h Holder) error {
			if h.ID == "b" {
				took = time.Since(changed)
				cancel()
			}
			return nil
		})
		if took != 0 {
			t.Errorf("the session with the next holder began after %v", took)
		}
	})
}
