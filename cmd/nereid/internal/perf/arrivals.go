package perf

import (
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"github.com/nereid-serving/nereid/services/scheduler/simulate"
)

// Arrivals is the process by which requests of an open loop arrive: one of the patterns
// of the simulator, which describes them, or Ramp.
type Arrivals string

// The processes. All have the same mean rate.
const (
	Constant = Arrivals(simulate.Constant)
	Poisson  = Arrivals(simulate.Poisson)
	Bursty   = Arrivals(simulate.Bursty)
	// Ramp is Poisson with a rate that grows linearly from 0 to twice the mean.
	Ramp Arrivals = "ramp"
)

// Load is how requests are sent: by a number of clients that each wait for their
// response (a closed loop), or at a rate whatever becomes of earlier requests (an
// open loop).
type Load struct {
	// Concurrency is the number of clients of a closed loop; 0 is an open loop.
	Concurrency int `json:"concurrency,omitempty"`
	// Rate is the mean of an open loop, in requests per second.
	Rate     float64  `json:"rate,omitempty"`
	Arrivals Arrivals `json:"arrivals,omitempty"`
	// Trace is the name of the recording whose requests are sent at their times, and Speed by how
	// much faster than they came.
	Trace string  `json:"trace,omitempty"`
	Speed float64 `json:"speed,omitempty"`
}

// offsets yields when the requests of an open loop are due, from the start of
// a run of the given length.
func (l Load) offsets(length time.Duration, rng *rand.Rand) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		next := l.process(length, rng)
		for {
			at := time.Duration(next() * float64(time.Second))
			if at >= length || !yield(at) {
				return
			}
		}
	}
}

// process returns the times of arrivals one after another, in seconds.
func (l Load) process(length time.Duration, rng *rand.Rand) func() float64 {
	if l.Arrivals != Ramp {
		return simulate.Pattern(l.Arrivals).Times(l.Rate, rng)
	}
	// The expected number of arrivals by time t is rate·t²/length: arrivals of a process
	// of rate 1 are mapped through its inverse.
	count := simulate.Poisson.Times(1, rng)
	return func() float64 { return math.Sqrt(count() * length.Seconds() / l.Rate) }
}
