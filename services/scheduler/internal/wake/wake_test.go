package wake_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/internal/wake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a wake-up that reports each ring with its time.
func start(t testing.TB, clock mono.Clock) (*wake.Up, <-chan mono.Time) {
	rings := make(chan mono.Time, 1000)
	u, err := wake.New(clock, func() { rings <- clock.Now() })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := u.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return u, rings
}

func TestRingsNotBeforeItsTime(t *testing.T) {
	clock := mono.New()
	u, rings := start(t, clock)
	at := clock.Now().Add(3 * time.Millisecond)
	u.Set(at)
	if got := <-rings; got < at {
		t.Errorf("rang %v early", at.Sub(got))
	}
}

func TestEarlierTimeWins(t *testing.T) {
	clock := mono.New()
	u, rings := start(t, clock)
	u.Set(clock.Now().Add(time.Hour))
	u.Set(clock.Now().Add(time.Millisecond))
	<-rings // would take an hour otherwise
	u.Set(clock.Now().Add(-time.Second))
	<-rings // a time in the past rings at once
}

// Of many wake-ups at least one comes before a timer that is set for later: none would if they
// were late as a rule, and a machine that is busy delays both.
func TestRingsBeforeALaterTimer(t *testing.T) {
	clock := mono.New()
	for range 100 {
		u, rings := start(t, clock)
		later := time.NewTimer(6 * time.Millisecond)
		u.Set(clock.Now().Add(time.Millisecond))
		select {
		case <-later.C:
		case <-rings:
			later.Stop()
			return
		}
	}
	t.Error("every wake-up came after a timer that was set for 5 ms later")
}

// BenchmarkLateness reports how late a 100 µs wait ends in an idle process.
func BenchmarkLateness(b *testing.B) {
	clock := mono.New()
	u, rings := start(b, clock)
	var late time.Duration
	n := 0
	for b.Loop() {
		at := clock.Now().Add(100 * time.Microsecond)
		u.Set(at)
		got := <-rings
		for got < at {
			got = <-rings // the other timer's, of the wait before
		}
		late += got.Sub(at)
		n++
	}
	b.ReportMetric(float64(late.Nanoseconds())/float64(n), "ns-late")
}
