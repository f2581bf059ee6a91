package fetch

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// The ways to hold a lock.
const (
	shared    = unix.LOCK_SH
	exclusive = unix.LOCK_EX
)

// errHeld says that others hold a lock.
var errHeld = errors.New("it is in use")

// lock is a lock of a file, between processes and within one. It ends with the
// process.
type lock struct{ file *os.File }

// lockPause is how often a lock is asked for that others hold: they may be
// fetching for minutes.
const lockPause = 50 * time.Millisecond

// acquire waits for a lock until ctx is done. waits is called if it must; it may be
// nil.
func acquire(ctx context.Context, name string, how int, waits func()) (*lock, error) {
	for ; ; waits = nil {
		l, err := try(name, how)
		if !errors.Is(err, errHeld) {
			return l, err
		}
		if waits != nil {
			waits()
		}
		lifecycle.Pause(ctx, lockPause)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// try takes a lock if it is free; else the error is errHeld.
func try(name string, how int) (*lock, error) {
	for {
		file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); err != nil {
			_ = file.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errHeld
			}
			return nil, os.NewSyscallError("flock", err)
		}
		// The file may have been removed meanwhile: then the lock is of nothing.
		held, err := file.Stat()
		if err == nil {
			if present, err := os.Stat(name); err == nil && os.SameFile(held, present) {
				return &lock{file}, nil
			}
		}
		_ = file.Close()
	}
}

func (l *lock) release() error { return l.file.Close() }
