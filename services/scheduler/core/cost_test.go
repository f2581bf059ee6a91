package core

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestNothingKnownCostsNothing(t *testing.T) {
	var c estimator
	if got := upper(&c, 8); got != 0 {
		t.Errorf("estimate %v before any execution, want 0", got)
	}
	c.learn(3, 0) // a clock that did not move says nothing
	c.learn(0, time.Second)
	if got := upper(&c, 3); got != 0 {
		t.Errorf("estimate %v after executions without a size or a time, want 0", got)
	}
}

func TestSizesThatWereSeenHaveTheirOwnEstimate(t *testing.T) {
	var c estimator
	// A step that no line follows: up to 4 rows cost one thing, more another.
	for range 100 {
		for rows := int64(1); rows <= 8; rows++ {
			took := 2 * time.Millisecond
			if rows > 4 {
				took = 10 * time.Millisecond
			}
			c.learn(rows, took)
		}
	}
	for rows, want := range map[int64]time.Duration{1: 2 * time.Millisecond, 4: 2 * time.Millisecond, 5: 10 * time.Millisecond, 8: 10 * time.Millisecond} {
		if got := upper(&c, rows); !near(got, want, 0.01) {
			t.Errorf("estimate(%d) = %v, want %v", rows, got, want)
		}
	}
}

func TestOtherSizesFollowTheLine(t *testing.T) {
	var c estimator
	for range 20 {
		c.learn(1, 3*time.Millisecond) // 2 ms + 1 ms per row
		c.learn(8, 10*time.Millisecond)
	}
	for rows, want := range map[int64]time.Duration{2: 4 * time.Millisecond, 32: 34 * time.Millisecond, 5000: 5002 * time.Millisecond} {
		if got := upper(&c, rows); !near(got, want, 0.05) {
			t.Errorf("estimate(%d) = %v, want about %v", rows, got, want)
		}
	}
}

func TestNoisyTimesAreEstimatedFromAbove(t *testing.T) {
	var c estimator
	for i := range 1000 {
		c.learn(4, time.Duration(8+4*(i%2))*time.Millisecond) // 8 or 12 ms
	}
	if got := upper(&c, 4); got < 12*time.Millisecond || got > 16*time.Millisecond {
		t.Errorf("estimate %v of times of 8 and 12 ms, want 12 to 16", got)
	}
}

func TestEstimatesFollowAChange(t *testing.T) {
	var c estimator
	for range 200 {
		c.learn(4, 50*time.Millisecond)
	}
	for range 200 {
		c.learn(4, 5*time.Millisecond)
	}
	if got := upper(&c, 4); !near(got, 5*time.Millisecond, 0.05) {
		t.Errorf("estimate %v long after the model became ten times faster", got)
	}
}

// One execution that is much longer than usual says little about the next ones; a
// second that follows it says much.
func TestAnOutlierCountsForLittle(t *testing.T) {
	var c estimator
	for i := range 200 {
		c.learn(4, time.Duration(9+2*(i%2))*time.Millisecond)
	}
	before := upper(&c, 4)
	c.learn(4, 500*time.Millisecond)
	if got := upper(&c, 4); got > before*5/4 {
		t.Errorf("estimate %v after one execution of 500 ms, %v before", got, before)
	}
	for range 20 {
		c.learn(4, 500*time.Millisecond)
	}
	if got := upper(&c, 4); got < 350*time.Millisecond {
		t.Errorf("estimate %v after 20 executions of 500 ms", got)
	}
}

// A size whose estimate is so high that it does not run any more is estimated by
// those that do.
func TestOldEstimatesGiveWayToTheLine(t *testing.T) {
	var c estimator
	learn := func(n int, from, to int64) {
		for range n {
			for rows := from; rows <= to; rows++ {
				c.learn(rows, time.Duration(2+rows)*time.Millisecond)
			}
		}
	}
	learn(20, 1, 8)
	for range 20 {
		c.learn(8, 100*time.Millisecond) // a machine that stood still
	}
	learn(5, 1, 7)
	if got := upper(&c, 8); got < 50*time.Millisecond {
		t.Errorf("estimate %v soon after 20 executions of 100 ms", got)
	}
	learn(40, 1, 7)
	if got := upper(&c, 8); got > 15*time.Millisecond {
		t.Errorf("estimate %v long after executions of 100 ms, want about 10 ms by the other sizes", got)
	}
}

// TestEstimatesStaySane: whatever was learned, estimates are no less than 0,
// finite, and within what was seen as far as sizes were seen.
func TestEstimatesStaySane(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c estimator
		var longest time.Duration
		for range rapid.IntRange(1, 60).Draw(t, "executions") {
			took := time.Duration(rapid.Int64Range(1, int64(10*time.Second)).Draw(t, "took"))
			longest = max(longest, took)
			c.learn(rapid.Int64Range(1, 16).Draw(t, "rows"), took)
		}
		for rows := int64(1); rows <= 16; rows++ {
			// At most, a line from nothing at 1 row to the longest at 2, and a deviation as large.
			if got := upper(&c, rows); got < 0 || got > 3*16*longest {
				t.Fatalf("estimate(%d) = %v after executions of up to %v", rows, got, longest)
			}
		}
	})
}

func near(got, want time.Duration, share float64) bool {
	return abs(float64(got-want)) <= share*float64(want)
}

func upper(e *estimator, size int64) time.Duration {
	mean, dev := e.of(size)
	return seconds(mean + 2*dev)
}
