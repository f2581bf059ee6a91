package perf

import (
	"context"
	"iter"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// longestNap bounds a sleep, so that the end of a context is noticed.
const longestNap = 50 * time.Millisecond

// pace calls due for each offset when its time has come. It sleeps in the kernel on
// a thread of its own: Go's timers are late by up to a millisecond in a process that
// has little to do, since they wait in epoll.
func pace(ctx context.Context, begin time.Time, offsets iter.Seq[time.Duration], due func(time.Time)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The kernel may add 50 µs to each sleep. A thread that is refused keeps that.
	slack, _ := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) //nolint:errcheck // as above
	for offset := range offsets {
		at := begin.Add(offset)
		for wait := time.Until(at); wait > 0; wait = time.Until(at) {
			nap := unix.NsecToTimespec(int64(min(wait, longestNap)))
			_ = unix.Nanosleep(&nap, nil) // a signal ends it early, and the loop goes on
			if ctx.Err() != nil {
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		due(at)
	}
}
