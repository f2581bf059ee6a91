package perf

import (
	"math"
	"slices"
	"time"
)

// Objective is what a server must hold.
type Objective struct {
	// Quantile of the latencies, such as 0.99, stays at or below Limit.
	Quantile float64       `json:"quantile"`
	Limit    time.Duration `json:"limit_ns"`
	// Errors is the share of requests that may fail.
	Errors float64 `json:"errors"`
}

// Trial is one rate that was tried.
type Trial struct {
	Rate float64 `json:"rate"`
	// Sent counts requests, Late those answered beyond the limit, and Failed those that failed.
	Sent   int64 `json:"sent"`
	Late   int64 `json:"late"`
	Failed int64 `json:"failed"`
	// Bad is the share of bad requests that the trial shows (see [badShare]), and Error
	// the standard error of its logarithm.
	Bad   float64 `json:"bad"`
	Error float64 `json:"error"`
	// Quantile is the latency at the objective's quantile, in microseconds.
	Quantile float64 `json:"quantile_us"`
}

// search finds the highest rate that holds an objective.
//
// It keeps a joint posterior of that rate and of how steeply the share of bad
// requests grows there, on a grid. Near the limit a queue's share of late requests
// grows as share(rate) = allowed·exp(steepness·(rate/limit − 1)): for random
// arrivals the tail of the waiting time is exponential with an exponent linear in
// the rate, and for even ones the share jumps, which a large steepness describes.
// The next trial is near the posterior's median, where it tells most (the
// probabilistic bisection of Horstein, with unknown noise).
type search struct {
	allowed     float64 // share of requests that may be bad
	rates       []float64
	steepnesses []float64
	// logs is the log posterior, by rate and steepness.
	logs   [][]float64
	trials []Trial
}

const (
	// gridStep is the relative distance of two rates of the grid. It is small beside
	// the interval that a search can reach.
	gridStep = 0.0025
	// near is how far from the limit the exponential holds, relative to it. Farther
	// away the share is at least, or at most, that at this distance.
	near = 0.15
	// misfit is the standard error of a log share that the model itself has.
	misfit = 0.15
	// freedom is that of the t-distribution of errors: trials that are far off, as
	// after a pause of the server, count less than under a normal one.
	freedom = 5
	// least and most bound a share, so that its logarithm is finite.
	least, most = 1e-7, 0.999
)

// newSearch starts a search between two rates.
func newSearch(o Objective, low, high float64) *search {
	s := &search{allowed: 1 - o.Quantile, steepnesses: []float64{10, 14, 20, 28, 40, 56, 80, 110, 160, 220, 320, 450}}
	for rate := low; rate <= high; rate *= 1 + gridStep {
		s.rates = append(s.rates, rate)
		s.logs = append(s.logs, make([]float64, len(s.steepnesses)))
	}
	return s
}

// observe updates the posterior by a trial.
func (s *search) observe(t Trial) {
	if t.Sent == 0 {
		return
	}
	s.trials = append(s.trials, t)
	seen, deviation := math.Log(min(max(t.Bad, least), most)), math.Hypot(t.Error, misfit)
	for i, limit := range s.rates {
		distance := t.Rate/limit - 1
		for j, steepness := range s.steepnesses {
			expected := math.Log(s.allowed) + steepness*min(max(distance, -near), near)
			expected = min(max(expected, math.Log(least)), math.Log(most))
			if distance > near && seen >= expected || distance < -near && seen <= expected {
				continue
			}
			z := (seen - expected) / deviation
			s.logs[i][j] -= (freedom + 1) / 2.0 * math.Log1p(z*z/freedom)
		}
	}
}

// quantile is the rate below which the given share of the posterior lies.
func (s *search) quantile(q float64) float64 {
	best := math.Inf(-1)
	for _, row := range s.logs {
		best = max(best, slices.Max(row))
	}
	weights, total := make([]float64, len(s.rates)), 0.0
	for i, row := range s.logs {
		for _, log := range row {
			weights[i] += math.Exp(log - best)
		}
		total += weights[i]
	}
	below := 0.0
	for i, w := range weights {
		if below+w >= q*total {
			if i == 0 || w == 0 {
				return s.rates[i]
			}
			part := (q*total - below) / w
			return s.rates[i-1] + (s.rates[i]-s.rates[i-1])*part
		}
		below += w
	}
	return s.rates[len(s.rates)-1]
}

// next is the rate to try. The sides of the posterior take turns with its middle:
// trials at one rate alone would not tell the steepness.
func (s *search) next() float64 {
	switch len(s.trials) % 3 {
	case 1:
		return s.quantile(0.3)
	case 2:
		return s.quantile(0.7)
	}
	return s.quantile(0.5)
}

// found is the highest rate so far, with its interval, which is not narrower than
// the grid.
func (s *search) found() Interval {
	return Interval{s.quantile(0.5), s.quantile(0.025) * (1 - gridStep), s.quantile(0.975) * (1 + gridStep)}
}

// tail is how many times the allowed share lies beyond the threshold from which a
// tail is extrapolated.
const tail = 4

// badShare estimates the share of requests that were late or failed, and the
// standard error of its logarithm, from the latencies of each batch.
//
// Few requests are late near the limit, and they come in clusters, so their number
// alone says little. Latencies beyond a threshold below the limit are more, and
// their excess is close to exponential (peaks over threshold; Pickands 1975):
// share = P(L > u)·exp(−x) with x = (limit − u)/mean excess. Clusters, not requests,
// are independent, and they are runs of batches with an excess. With c of them the
// relative error of both factors' estimates is 1/√c, and the logarithm of the second
// is too low by x/c.
func badShare(o Objective, latencies *[batches][]time.Duration, failed int64) (share, deviation float64) {
	var all []time.Duration
	for _, batch := range latencies {
		all = append(all, batch...)
	}
	sent := float64(len(all)) + float64(failed)
	if len(all) == 0 {
		return 1, 1
	}
	slices.Sort(all)
	threshold := all[max(int(float64(len(all))*(1-tail*(1-o.Quantile)))-1, 0)]
	threshold = min(threshold, o.Limit)
	above, sum, clusters, running := 0.0, 0.0, 0.0, false
	for _, batch := range latencies {
		before := above
		for _, l := range batch {
			if l > threshold {
				above++
				sum += float64(l - threshold)
			}
		}
		if above > before && !running {
			clusters++
		}
		running = above > before
	}
	late, x := above, 0.0
	if beyond := float64(o.Limit - threshold); above > 0 && beyond > 0 {
		x = beyond / (sum / above)
		late *= math.Exp(-x * (1 - 1/max(clusters, 2)))
	}
	share = (late + float64(failed)) / sent
	if failed > 0 { // where failures exceed their own share by more, they count by that
		share = max(share, (1-o.Quantile)*float64(failed)/sent/o.Errors)
	}
	return min(share, 1), math.Sqrt((1 + x*x) / max(clusters, 1))
}
