package obs_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nereid-serving/nereid/libs/obs"
)

func TestDurationsFallIntoTheirBuckets(t *testing.T) {
	for d, want := range map[time.Duration]float64{ // the bound of the bucket, in seconds
		-1: 1e-6, 0: 1e-6, 1: 1e-6, time.Microsecond: 1e-6, time.Microsecond + 1: 4e-6,
		4 * time.Microsecond: 4e-6, 5 * time.Microsecond: 16e-6, 16 * time.Microsecond: 16e-6, 17 * time.Microsecond: 64e-6,
		time.Millisecond: 1024e-6, 67 * time.Second: 67.108864, time.Minute * 2: 0, 1<<63 - 1: 0, // the last has no bound
	} {
		var h obs.Durations
		h.Observe(d)
		var got dto.Metric
		if err := h.Metric(prometheus.NewDesc("d_seconds", "D.", nil, nil)).Write(&got); err != nil {
			t.Fatal(err)
		}
		first := 0.0
		for _, b := range got.GetHistogram().GetBucket() {
			if b.GetCumulativeCount() == 1 {
				first = b.GetUpperBound()
				break
			}
		}
		if n := got.GetHistogram().GetSampleCount(); first != want || n != 1 {
			t.Errorf("%v is below %v, of %d, want %v", d, first, n, want)
		}
		if sum := got.GetHistogram().GetSampleSum(); sum != max(d, 0).Seconds() {
			t.Errorf("%v: the sum is %v", d, sum)
		}
	}
}

func BenchmarkDurations(b *testing.B) {
	var h obs.Durations
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h.Observe(123 * time.Microsecond)
		}
	})
}
