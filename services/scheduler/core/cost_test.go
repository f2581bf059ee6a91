package core

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
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

// What is kept of the costs says the same after a restart, and is corrected soon.
func TestCostsThatWereKeptAreKnownAgain(t *testing.T) {
	var before, after estimator
	for i := range 200 {
		before.learn(1, time.Duration(3000+300*(i%2))*time.Microsecond)
		before.learn(8, time.Duration(10000+1000*(i%2))*time.Microsecond)
	}
	after.recall(before.known(kept))
	for _, rows := range []int64{1, 4, 8, 20} {
		if got, want := upper(&after, rows), upper(&before, rows); !near(got, want, 0.05) {
			t.Errorf("estimate(%d) = %v, was %v", rows, got, want)
		}
	}
	for range 60 {
		after.learn(8, 5*time.Millisecond)
	}
	if got := upper(&after, 8); got > 7*time.Millisecond {
		t.Errorf("estimate %v long after the model became twice as fast", got)
	}
}

func TestCostsOfManySizesAreKeptByHowOftenTheyRan(t *testing.T) {
	var e estimator
	for rows := int64(1); rows <= 100; rows++ {
		for range rows {
			e.learn(rows, time.Millisecond)
		}
	}
	list := e.known(kept)
	if len(list) != kept || list[0].BatchSize != 100 || list[kept-1].BatchSize != 100-kept+1 {
		t.Errorf("%d sizes are kept, from %+v to %+v", len(list), list[0], list[len(list)-1])
	}
}

// Costs come by the magnitude of rows and the kind of device; what executions have
// taught stays.
func TestCostsFromBefore(t *testing.T) {
	s, ref := newScript(), infer.ModelRef{Name: "m", Version: 1}
	s.step(&Event{Kind: BecomeLeader})
	known := []infer.Cost{
		{Device: "cpu", Magnitude: 4, BatchSize: 2, Executions: 20, Mean: 10 * time.Millisecond},
		{Device: "gpu", Magnitude: 7, BatchSize: 2, Executions: 20, Mean: time.Millisecond},
	}
	s.step(&Event{Kind: Learned, Model: &Model{Ref: ref}, Costs: known}) // of a model that is not known
	config := &modelconfig.Config{MaxBatchSize: 4, Inputs: []modelconfig.IO{{Name: "x", Dims: []int64{-1}}}}
	s.step(&Event{Kind: Configure, Model: &Model{Ref: ref, Config: config}})
	s.step(&Event{Kind: Learned, Model: &Model{Ref: ref}, Costs: known})
	m := s.core.models[ref]
	for _, want := range known {
		if got := m.costsOn(want.Device+":0").mean(2, m.shapes.of(1<<(want.Magnitude-1))); !near(got, want.Mean, 0.01) {
			t.Errorf("%s: %v, want %v", want.Device, got, want.Mean)
		}
	}
	list, executions := s.core.Costs(ref)
	if len(list) != 2 || executions != 2*trusted || list[0].Magnitude != 4 || list[1].Device != "gpu" {
		t.Errorf("known are %+v, of %d executions", list, executions)
	}
	known[0].Mean = time.Second
	s.step(&Event{Kind: Learned, Model: &Model{Ref: ref}, Costs: known})
	if got := m.costsOn("cpu").mean(2, m.shapes.of(8)); !near(got, 10*time.Millisecond, 0.01) {
		t.Errorf("what is known became %v", got)
	}
}

// What warms an instance up is often longer: it is the estimate until something has run.
func TestWarmUpIsTheFirstEstimate(t *testing.T) {
	s, ref := newScript(), infer.ModelRef{Name: "m", Version: 1}
	s.step(&Event{Kind: BecomeLeader})
	s.step(&Event{Kind: Configure, Model: &Model{Ref: ref, Config: &modelconfig.Config{MaxBatchSize: 4}}})
	s.connected(1)
	s.step(&Event{Kind: Granted, Grant: &infer.Grant{
		Instance: infer.InstanceID{Worker: 1}, Model: ref, Device: "cpu", Credits: 1,
		Warmed: []infer.Cost{{Magnitude: 4, BatchSize: 1, Executions: 1, Mean: 40 * time.Millisecond}, {Magnitude: 4, BatchSize: 4, Executions: 1, Mean: 70 * time.Millisecond}},
	}})
	c := s.core.models[ref].costsOn("cpu")
	if got := c.mean(2, shape{}); !near(got, 50*time.Millisecond, 0.01) {
		t.Errorf("%v before anything ran, want what lies between the warm-ups", got)
	}
	if list, _ := s.core.Costs(ref); list != nil {
		t.Errorf("%+v is worth keeping", list)
	}
	s.submit(1, 0)
	begin := s.now
	s.now = s.now.Add(8 * time.Millisecond)
	s.step(&Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
		Batch: infer.BatchID{Number: 1}, Instance: infer.InstanceID{Worker: 1}, Credits: 1, Executions: 1, Timing: infer.Timing{Start: begin, Done: s.now},
	}})
	if got := c.mean(1, shape{}); !near(got, 8*time.Millisecond, 0.01) {
		t.Errorf("%v after an execution of 8 ms", got)
	}
}
