package backend

import (
	"context"
	"time"
)

// StopGrace is how long an instance may take to end canceled work before it is stopped or left behind.
const StopGrace = 2 * time.Second

// Stopper is an instance that can be stopped whatever it is doing.
type Stopper interface {
	// Stop ends the batches in flight, which fail, and a Close that waits for the model. After it, no batch arrives,
	// only Close. Any goroutine may call it, more than once. It does not wait, and reports false if the instance
	// cannot be stopped.
	Stop() bool
}

// WithGrace returns a context that is done [StopGrace] after ctx. The returned function frees its resources.
func WithGrace(ctx context.Context) (late context.Context, free context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() {
		grace := time.NewTimer(StopGrace)
		defer grace.Stop()
		select {
		case <-grace.C:
			cancel()
		case <-late.Done():
		}
	})
	return late, func() {
		unhook()
		cancel()
	}
}

// Await waits until ended is closed, and stops the instance if necessary when late is done. It reports false if the
// instance cannot be stopped.
func Await(late context.Context, in Instance, ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	case <-late.Done():
	}
	if s, ok := in.(Stopper); !ok || !s.Stop() {
		return false
	}
	<-ended
	return true
}

// Close closes an instance, and stops it if necessary when late is done, if it can be stopped.
func Close(late context.Context, in Instance) (err error) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		err = in.Close()
	}()
	if !Await(late, in, closed) {
		<-closed
	}
	return err
}
