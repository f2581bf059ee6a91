// Package wake is the scheduler's only wake-up: a timer that fires within tens of microseconds whether the process is
// idle or busy.
//
// A Go timer alone is up to a millisecond late in an idle process, because the runtime then sleeps in epoll_wait with
// that resolution. A timerfd alone is late when all threads are busy, because nobody polls. Each is precise where the
// other is not, so both are armed and the first to fire wins.
package wake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/mono"
)

// Up is one wake-up. Only one goroutine at a time may call Set. Other goroutines may call the fire function, even
// slightly early, or when nothing is set any more.
type Up struct {
	clock mono.Clock
	fire  func()
	fd    int
	file  *os.File

	mu     sync.Mutex
	armed  mono.Time // guarded by mu; 0 when not armed
	closed bool      // guarded by mu
	timer  *time.Timer
}

// New returns a wake-up that calls fire, which must not block. Close frees it.
func New(clock mono.Clock, fire func()) (*Up, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a timerfd: %w", err)
	}
	u := &Up{clock: clock, fire: fire, fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
	u.timer = time.AfterFunc(time.Hour, u.ring)
	u.timer.Stop()
	return u, nil
}

// Run waits for the timerfd until ctx is done.
func (u *Up) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = u.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var expirations [8]byte
	for {
		if _, err := u.file.Read(expirations[:]); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("wait for the timerfd: %w", err)
		}
		u.ring()
	}
}

// Set asks to be woken at the given time; 0 changes nothing. A wake-up that is armed for an earlier time stays: it
// rings early, and the caller sets it again. So most calls cost no system call.
func (u *Up) Set(at mono.Time) {
	if at == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.armed != 0 && u.armed <= at {
		return
	}
	u.armed = at
	left := max(at.Sub(u.clock.Now()), 1)
	u.timer.Reset(left)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}
	// The descriptor is ours and the time is positive, so this cannot fail; if it does, the Go timer remains.
	_ = unix.TimerfdSettime(u.fd, 0, &spec, nil)
}

// Close frees the timers after Run has returned. From then on Set does nothing: the descriptor's number may have been
// reused.
func (u *Up) Close() error {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.timer.Stop()
	return u.file.Close()
}

func (u *Up) ring() {
	u.mu.Lock()
	u.armed = 0
	u.mu.Unlock()
	u.fire()
}
