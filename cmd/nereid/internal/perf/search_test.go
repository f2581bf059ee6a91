package perf

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// queue is a simulated server: instances that take a fixed time for each request, in
// the order of their arrival.
type queue struct {
	instances int
	service   time.Duration
}

// latencies returns how long each arrival waited and ran.
func (q queue) latencies(l Load, length time.Duration, rng *rand.Rand) (at, took []time.Duration) {
	free := make(times, q.instances)
	for due := range l.offsets(length, rng) {
		start := max(due, free[0])
		free[0] = start + q.service
		heap.Fix(&free, 0)
		at, took = append(at, due), append(took, start+q.service-due)
	}
	return at, took
}

type times []time.Duration

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i] < t[j] }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(any)          { panic("the number of instances is fixed") }
func (t *times) Pop() any          { panic("the number of instances is fixed") }

// trial runs the simulated server as [Bench.try] runs a real one.
func (q queue) trial(o Objective, l Load, length time.Duration, rng *rand.Rand) Trial {
	r := newRecorder(1, length, true)
	at, took := q.latencies(l, length+settle, rng)
	for i := range at {
		due := at[i] - settle
		r.add(&outcome{due: due, sent: due, first: due + took[i], done: due + took[i], responses: 1})
	}
	return r.groups[1].trial(o, length)
}

// limit is the rate at which the objective is just held, from a long simulation.
func (q queue) limit(o Objective, arrivals Arrivals) float64 {
	capacity := float64(q.instances) / q.service.Seconds()
	low, high := 0.2*capacity, 1.1*capacity
	for range 12 {
		rate := (low + high) / 2
		_, took := q.latencies(Load{Rate: rate, Arrivals: arrivals}, 600*time.Second, rand.New(rand.NewPCG(7, 7)))
		late := 0
		for _, d := range took {
			if d > o.Limit {
				late++
			}
		}
		if float64(late) > (1-o.Quantile)*float64(len(took)) {
			high = rate
		} else {
			low = rate
		}
	}
	return (low + high) / 2
}

// TestSearchFindsTheLimitOfAQueue holds searches against the truth: most are within
// 3 % of it, and intervals have it in 19 of 20 on average.
func TestSearchFindsTheLimitOfAQueue(t *testing.T) {
	t.Parallel()
	o := Objective{Quantile: 0.99, Limit: 20 * time.Millisecond, Errors: 0.001}
	for _, arrivals := range []Arrivals{Poisson, Constant} {
		t.Run(string(arrivals), func(t *testing.T) {
			t.Parallel()
			q := queue{instances: 4, service: 5 * time.Millisecond}
			truth := q.limit(o, arrivals)
			capacity := float64(q.instances) / q.service.Seconds()
			const repeats = 12
			within, covered := 0, 0
			for seed := range uint64(repeats) {
				rng := rand.New(rand.NewPCG(seed, 3))
				s := newSearch(o, lowest*capacity, highest*capacity)
				for spent := time.Duration(0); spent < 42*time.Second; {
					length := s.length()
					s.observe(q.trial(o, Load{Rate: s.next(), Arrivals: arrivals}, length, rng))
					spent += length + settle
				}
				found := s.found()
				if math.Abs(found.Value/truth-1) < 0.03 {
					within++
				}
				if found.Low <= truth*1.001 && truth*0.999 <= found.High {
					covered++
				}
			}
			t.Logf("truth %.1f: %d of %d within 3 %%, %d covered", truth, within, repeats, covered)
			if within < repeats*3/4 {
				t.Errorf("%d of %d searches are within 3 %% of the truth, want three quarters", within, repeats)
			}
			if covered < repeats*9/10 {
				t.Errorf("%d of %d intervals have the truth, want about 19 of 20", covered, repeats)
			}
		})
	}
}
