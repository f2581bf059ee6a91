package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrLost says that a lease has ended: it could not be renewed within its time
// to live, another life of its holder took it over, or its Bus was closed.
var ErrLost = errors.New("lease lost")

var errClosed = errors.New("bus closed")

// Lease is a key that its holder keeps alive. Its methods are safe for
// concurrent use.
type Lease[T any] struct {
	bucket *Bucket[T]
	key    string
	holder string
	epoch  uint64
	ttl    time.Duration

	lost chan struct{} // closed by keep as the last it does
	stop context.CancelFunc

	mu       sync.Mutex // also orders the writes
	data     []byte     // guarded by mu
	stored   bool       // the store has data; guarded by mu
	revision uint64     // guarded by mu
	expires  time.Time  // guarded by mu; earlier than the server's, which counts from arrival
	cause    error      // guarded by mu; why the lease ended
	released bool       // guarded by mu
}

func newLease[T any](c *claimant[T], epoch uint64, data []byte, sent time.Time) *Lease[T] {
	ctx, stop := context.WithCancel(c.bucket.bus.life)
	l := &Lease[T]{
		bucket:   c.bucket,
		key:      c.claim.Key,
		holder:   c.holder,
		epoch:    epoch,
		ttl:      c.claim.TTL,
		lost:     make(chan struct{}),
		stop:     stop,
		data:     data,
		stored:   true,
		revision: epoch,
		expires:  sent.Add(c.claim.TTL),
	}
	if !c.bucket.bus.start(func() { l.keep(ctx) }) {
		l.keep(ctx) // which ends at once
	}
	return l
}

// Epoch is the revision at which the lease was acquired: higher than that of
// every earlier holder of the key.
func (l *Lease[T]) Epoch() uint64 { return l.epoch }

// Lost returns a channel that closes when the lease has ended, by loss or by
// Release. From then on the holder must not act as one.
func (l *Lease[T]) Lost() <-chan struct{} { return l.lost }

// Err says why the lease has ended: nil while it is held and after Release,
// else an error that is ErrLost.
func (l *Lease[T]) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Set publishes a new value at once. Any error but ErrLost and an oversized
// value leaves it to the next renewal, which publishes it. An equal value is
// not written: of two that are equal one watch would tell the first and a
// slower one the second, under different revisions.
func (l *Lease[T]) Set(ctx context.Context, value T) error {
	data, err := l.bucket.encode(l.key, value)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended() {
		return l.endErr()
	}
	if l.stored && bytes.Equal(data, l.data) {
		return nil
	}
	l.data, l.stored = data, false
	if err = l.write(ctx); errors.Is(err, ErrLost) {
		l.fail(err)
	}
	return err
}

// Release ends the lease: the key is deleted, and others see it at once. The
// lease is over even if an error is returned; its key then ends by itself.
func (l *Lease[T]) Release(ctx context.Context) error {
	l.mu.Lock()
	over := l.ended()
	l.released = true
	l.mu.Unlock()
	l.stop()
	<-l.lost
	if over {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.bucket.Delete(ctx, l.key, l.revision)
	if errors.Is(err, ErrConflict) {
		if err = l.adopt(ctx); err == nil {
			err = l.bucket.Delete(ctx, l.key, l.revision)
		}
	}
	if errors.Is(err, ErrConflict) || errors.Is(err, ErrLost) {
		return nil // somebody else's by now
	}
	return err
}

// keep renews the lease three times within its time to live, more often while
// that fails, and ends with the lease.
func (l *Lease[T]) keep(ctx context.Context) {
	defer close(l.lost)
	defer l.stop()
	timer := time.NewTimer(l.ttl / 3)
	defer timer.Stop()
	for {
		again, lost := l.bucket.bus.reconnected(), l.bucket.bus.past.seen(l.bucket.spec.Name).lost
		select {
		case <-ctx.Done():
			l.closed()
			return
		case <-timer.C:
		case <-again: // the sooner others know that the holder is there
		case <-lost:
		}
		next, held := l.renew(ctx)
		if !held {
			return
		}
		timer.Reset(next)
	}
}

// renew writes the value again. It returns when to do so next, and whether the
// lease is still held.
func (l *Lease[T]) renew(ctx context.Context) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended() {
		return 0, false
	}
	attempt, cancel := context.WithDeadline(ctx, l.attemptEnd())
	err := l.write(attempt)
	cancel()
	if err == nil {
		return l.ttl / 3, true
	}
	left := time.Until(l.expires)
	switch {
	case ctx.Err() != nil: // released, or the bus closes: keep sees to it
		return l.ttl, true
	case errors.Is(err, ErrLost):
		l.fail(err)
		return 0, false
	case left <= 0:
		l.fail(fmt.Errorf("%w: %s not renewed within %v: %w", ErrLost, l.bucket.name(l.key), l.ttl, err))
		return 0, false
	}
	return min(l.ttl/10, left), true
}

// attemptEnd leaves room for a second attempt while there is time for one.
func (l *Lease[T]) attemptEnd() time.Time {
	if soon := time.Now().Add(l.ttl / 3); soon.Before(l.expires) {
		return soon
	}
	return l.expires
}

// write publishes the present value under the revision last known. A conflict
// may be our own earlier write whose answer was lost.
func (l *Lease[T]) write(ctx context.Context) error {
	err := l.publish(ctx)
	if !errors.Is(err, ErrConflict) {
		return err
	}
	if err := l.adopt(ctx); err != nil {
		return err
	}
	return l.publish(ctx)
}

func (l *Lease[T]) publish(ctx context.Context) error {
	sent := time.Now()
	revision, err := l.bucket.publish(ctx, l.key, l.data, nats.Header{headerHolder: {l.holder}},
		jetstream.WithExpectLastSequencePerSubject(l.revision),
		jetstream.WithMsgTTL(l.ttl))
	if err == nil {
		l.revision, l.expires, l.stored = revision, sent.Add(l.ttl), true
	}
	return err
}

// adopt takes over the key's revision if this lease wrote it, and else gives
// ErrLost. A replica that lags behind may answer with an older revision, which
// says nothing: then the next try decides.
func (l *Lease[T]) adopt(ctx context.Context) error {
	rec, err := l.bucket.last(ctx, l.key)
	switch {
	case err != nil:
		return err
	case rec.live && rec.holder == l.holder:
		l.revision = max(l.revision, rec.revision)
		return nil
	case rec.revision != 0 && rec.revision < l.revision:
		return unavailable(nil, "a replica of %s lags behind", l.bucket.name(l.key))
	case rec.live:
		return fmt.Errorf("%w: %s has another holder", ErrLost, l.bucket.name(l.key))
	}
	return fmt.Errorf("%w: %s has ended", ErrLost, l.bucket.name(l.key))
}

// ended reports whether the holder must not act any more, although keep may
// not know yet.
func (l *Lease[T]) ended() bool {
	return l.released || l.cause != nil
}

func (l *Lease[T]) endErr() error {
	if l.cause != nil {
		return l.cause
	}
	return fmt.Errorf("%w: %s was released", ErrLost, l.bucket.name(l.key))
}

// fail ends the lease; keep closes lost.
func (l *Lease[T]) fail(err error) {
	if l.cause == nil {
		l.cause = err
	}
	l.stop()
}

func (l *Lease[T]) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.released && l.cause == nil {
		l.cause = fmt.Errorf("%w: %w", ErrLost, errClosed)
	}
}
