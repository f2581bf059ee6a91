package stats

import (
	"github.com/nereid-serving/nereid/libs/errs"
)

// Latencies says in which forms the times of requests are shown.
type Latencies struct {
	// Counters are sums of microseconds.
	Counters bool
	// Histograms are of milliseconds.
	Histograms bool
	// Summaries are quantiles in microseconds over the last minute. They cost
	// about a microsecond for each request, and memory for each model.
	Summaries bool
	Quantiles []Quantile
}

// Quantile is a quantile of summaries.
type Quantile struct {
	// Rank is from 0 to 1: 0.5 is the median.
	Rank float64
	// Error is by how much the rank of the value shown may be off, more than
	// 0 and at most 1. A smaller one costs memory.
	Error float64
}

// DefaultLatencies are Triton's: counters alone.
func DefaultLatencies() Latencies {
	return Latencies{Counters: true, Quantiles: []Quantile{{0.5, 0.05}, {0.9, 0.01}, {0.95, 0.001}, {0.99, 0.001}, {0.999, 0.001}}}
}

// Validate returns an error of the reason config_invalid that names the
// quantile and what it may be.
func (l Latencies) Validate() error {
	seen := make(map[float64]bool, len(l.Quantiles))
	for _, q := range l.Quantiles {
		switch {
		case !(q.Rank >= 0 && q.Rank <= 1): // NaN neither
			return errs.New(errs.ConfigInvalid, "summary_quantiles has the quantile %v: want 0 to 1", q.Rank)
		case !(q.Error > 0 && q.Error <= 1):
			return errs.New(errs.ConfigInvalid, "summary_quantiles has the error %v for the quantile %v: want more than 0, at most 1", q.Error, q.Rank)
		case seen[q.Rank]:
			return errs.New(errs.ConfigInvalid, "summary_quantiles has the quantile %v twice", q.Rank)
		}
		seen[q.Rank] = true
	}
	return nil
}

// objectives are the quantiles as the client library takes them.
func (l Latencies) objectives() map[float64]float64 {
	all := make(map[float64]float64, len(l.Quantiles))
	for _, q := range l.Quantiles {
		all[q.Rank] = q.Error
	}
	return all
}
