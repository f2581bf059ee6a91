package leader

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A holder whose meetings all end at once is not met without end: pauses grow
// to lastPause. One that was met for a while is met again at once.
func TestShortMeetingsArePausedBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(nil, Registry)
		f.set(Holder{ID: "a", Epoch: 1})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		met := 0
		f.Follow(ctx, func(context.Context, Holder) error { met++; return nil })
		if most := 2*30 + 12; met < 30 || met > most {
			t.Errorf("met %d times in half a minute, want 30 to %d", met, most)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var ended time.Time
		f.Follow(ctx, func(tenure context.Context, _ Holder) error {
			if !ended.IsZero() && time.Since(ended) > 0 {
				t.Errorf("met again after %v", time.Since(ended))
			}
			select {
			case <-tenure.Done():
			case <-time.After(lasting):
			}
			ended = time.Now()
			return nil
		})
	})
}

// Another holder is met at once, whatever the pause after the one before.
func TestNextHolderIsMetAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(nil, Registry)
		f.set(Holder{ID: "a", Epoch: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var took time.Duration
		begun := time.Now()
		go func() {
			<-time.After(10*time.Second + time.Millisecond) // in the midst of a pause
			begun = time.Now()
			f.set(Holder{ID: "b", Epoch: 2})
		}()
		f.Follow(ctx, func(_ context.Context, h Holder) error {
			if h.ID == "b" {
				took = time.Since(begun)
				cancel()
			}
			return nil
		})
		if took != 0 {
			t.Errorf("the next holder was met after %v", took)
		}
	})
}
