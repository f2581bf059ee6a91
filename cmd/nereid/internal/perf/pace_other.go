//go:build !linux

package perf

import (
	"context"
	"iter"
	"time"
)

// pace calls due for each offset when its time has come.
func pace(ctx context.Context, begin time.Time, offsets iter.Seq[time.Duration], due func(time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for offset := range offsets {
		at := begin.Add(offset)
		timer.Reset(time.Until(at))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		due(at)
	}
}
