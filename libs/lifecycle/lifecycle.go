// Package lifecycle runs the parts of a process: it starts them in order and stops
// them in reverse, so that each finishes its work before what it depends on stops.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
)

// Part is a part of a process.
type Part struct {
	// Name says which part failed; an error of a part without one says it
	// itself.
	Name string
	// Run works until ctx is done, then finishes its work and returns nil.
	// Returning earlier, with an error or without, stops the process.
	Run func(ctx context.Context) error
}

// ErrEnded is the cause when a part returns without an error although it was not
// stopped.
var ErrEnded = errors.New("ended by itself")

// Run starts the parts in their order and waits until ctx is done or a part
// returns. Then it stops them one by one, the last first, and returns the
// first cause: nil if ctx was done and every part stopped without an error.
func Run(ctx context.Context, parts ...Part) error {
	running := make([]*running, len(parts))
	ended := make(chan error, len(parts))
	for i, p := range parts {
		running[i] = start(ctx, p, ended)
	}
	var cause error
	select {
	case <-ctx.Done():
	case cause = <-ended:
	}
	for i := range running {
		err := running[len(running)-1-i].stop()
		cause = first(cause, err)
	}
	return cause
}

// running is a started part.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid after done
}

// start runs p under a context that only stop ends, so that parts stop in
// order even when ctx is done for all of them at once.
func start(ctx context.Context, p Part, ended chan<- error) *running {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		err := p.Run(own)
		if err == nil && own.Err() == nil {
			err = ErrEnded
		}
		if err != nil {
			if r.err = err; p.Name != "" {
				r.err = fmt.Errorf("%s: %w", p.Name, err)
			}
			ended <- r.err
		}
	}()
	return r
}

func (r *running) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
