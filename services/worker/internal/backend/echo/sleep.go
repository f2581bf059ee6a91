package echo

import (
	"time"

	"golang.org/x/sys/unix"
)

// fine is the last part of a sleep, which the operating system times: a timer
// of the Go runtime may be late by a millisecond in an idle process.
const fine = 2 * time.Millisecond

// Sleep waits for d, to some 50 µs, or until stop can be received from. The
// last 2 ms cannot be stopped; they hold a thread, as a run of a model does.
func Sleep(d time.Duration, stop <-chan struct{}) {
	end := time.Now().Add(d)
	if d > fine {
		timer := time.NewTimer(d - fine)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-stop:
			return
		}
	}
	left := unix.NsecToTimespec(int64(time.Until(end)))
	for left.Nano() > 0 && unix.Nanosleep(&left, &left) == unix.EINTR {
	}
}
