package obs

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// buckets are those below the last one, which has no bound.
const buckets = 14

// Durations is a histogram of durations for the path of requests: an
// observation is two additions. Its buckets end at the powers of 4 from 1 µs to
// 67 s, so that an hour's histogram of a microsecond's stage and one of a
// second's fit the same table. The zero value is empty; it is safe for
// concurrent use.
type Durations struct {
	counts [buckets + 1]atomic.Uint64
	nanos  atomic.Int64
}

// Observe counts a duration. A negative one, from clocks of two processes, is
// none.
func (h *Durations) Observe(d time.Duration) {
	d = max(d, 0)
	h.counts[bucketOf(d)].Add(1)
	h.nanos.Add(int64(d))
}

// bucketOf is the first bucket whose bound is not below d.
func bucketOf(d time.Duration) int {
	micros := (uint64(d) + 999) / 1000 // a bound belongs to its bucket
	return min((bits.Len64(max(micros, 1)-1)+1)/2, buckets)
}

// Metric shows the histogram under a description that has no variable labels
// but those given.
func (h *Durations) Metric(d *prometheus.Desc, labels ...string) prometheus.Metric {
	bounds := make(map[float64]uint64, buckets)
	var count uint64
	for i := range buckets {
		count += h.counts[i].Load()
		bounds[float64(uint64(1)<<(2*i))/1e6] = count
	}
	count += h.counts[buckets].Load()
	sum := time.Duration(h.nanos.Load()).Seconds()
	return prometheus.MustNewConstHistogram(d, count, sum, bounds, labels...)
}
