package perf

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// batches is how many windows a run is divided into.
	batches = 32
	// longest bounds a latency; a longer one counts as this.
	longest = time.Hour
	// digits is the precision of latencies, in significant decimal digits.
	digits = 3
)

// Interval is an estimate with the bounds of its 95 % confidence interval. Where
// there is too little data for bounds they are NaN.
type Interval struct {
	Value, Low, High float64
}

// around is the interval of an estimate whose half width is h.
func around(value, h float64) Interval { return Interval{value, value - h, value + h} }

// known reports whether the interval has bounds.
func (i Interval) known() bool { return !math.IsNaN(i.Low) && !math.IsNaN(i.High) }

// minus is the difference of two independent estimates. Its variance is the sum
// of theirs.
func (i Interval) minus(o Interval) Interval {
	return around(i.Value-o.Value, math.Hypot((i.High-i.Low)/2, (o.High-o.Low)/2))
}

// meanOf is the mean of batch means with the interval of Student's t-distribution
// (the method of batch means; Law and Kelton, Simulation Modeling and Analysis).
func meanOf(values []float64) Interval {
	n := float64(len(values))
	if n == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
	}
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	if n < 2 {
		return around(mean, math.NaN())
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return around(mean, student(len(values)-1)*math.Sqrt(squares/(n-1)/n))
}

// student is the 97.5 % quantile of Student's t-distribution, by the expansion of
// Cornish and Fisher (Abramowitz and Stegun 26.7.5); from 4 degrees of freedom on
// it is exact to 0.1 %, and below it comes from the table.
func student(freedom int) float64 {
	if table := [...]float64{12.706, 4.303, 3.182}; freedom <= len(table) {
		return table[max(freedom, 1)-1]
	}
	const z = 1.959964
	n := float64(freedom)
	return z + (z*z*z+z)/(4*n) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*n*n) +
		(3*math.Pow(z, 7)+19*math.Pow(z, 5)+17*z*z*z-15*z)/(384*n*n*n) +
		(79*math.Pow(z, 9)+776*math.Pow(z, 7)+1482*math.Pow(z, 5)-1920*z*z*z-945*z)/(92160*n*n*n*n)
}

// spread counts durations by size, for each batch.
type spread struct {
	batches [batches]*hdrhistogram.Histogram
	total   *hdrhistogram.Histogram
}

// add counts a duration in a batch.
func (s *spread) add(batch int, d time.Duration) {
	h := s.batches[batch]
	if h == nil {
		h = hdrhistogram.New(1, longest.Microseconds(), digits)
		s.batches[batch] = h
	}
	s.total = nil
	_ = h.RecordValue(min(max(d.Microseconds(), 1), longest.Microseconds())) // within the bounds of the histogram
}

// all is the histogram of every batch.
func (s *spread) all() *hdrhistogram.Histogram {
	if s.total == nil {
		s.total = hdrhistogram.New(1, longest.Microseconds(), digits)
		for _, h := range s.batches {
			if h != nil {
				s.total.Merge(h)
			}
		}
	}
	return s.total
}

// count is how many durations there are.
func (s *spread) count() int64 { return s.all().TotalCount() }

// mean is in microseconds.
func (s *spread) mean() Interval {
	var means []float64
	for _, h := range s.batches {
		if h != nil {
			means = append(means, h.Mean())
		}
	}
	i := meanOf(means)
	if s.count() > 0 { // batches may differ in size: the estimate is that of all
		h := (i.High - i.Low) / 2
		i = around(s.all().Mean(), h)
	}
	return i
}

// quantile is the q-quantile, in microseconds. Its interval inverts that of the
// share of durations which do not exceed it: the share varies from batch to batch
// around q, and bounds of the share are bounds of the quantile (Heidelberger and
// Lewis, Quantile Estimation in Dependent Sequences, 1984).
func (s *spread) quantile(q float64) Interval {
	all := s.all()
	if all.TotalCount() == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN()}
	}
	value := all.ValueAtQuantile(100 * q)
	var shares []float64
	for _, h := range s.batches {
		if h != nil {
			shares = append(shares, shareUpTo(h, value))
		}
	}
	share := meanOf(shares)
	h := (share.High - share.Low) / 2
	// An interval that reaches beyond the largest duration has no upper bound in the
	// data.
	outOfData := q+h >= 1-0.5/float64(all.TotalCount())
	i := Interval{float64(value), math.NaN(), math.NaN()}
	if !math.IsNaN(h) && !outOfData {
		i.Low = float64(all.ValueAtQuantile(100 * max(q-h, 0)))
		i.High = float64(all.ValueAtQuantile(100 * (q + h)))
	}
	return i
}

// shareUpTo is the share of durations that are at most value.
func shareUpTo(h *hdrhistogram.Histogram, value int64) float64 {
	below := int64(0)
	for _, bar := range h.Distribution() {
		if bar.From > value {
			break
		}
		below += bar.Count
	}
	return float64(below) / float64(max(h.TotalCount(), 1))
}
