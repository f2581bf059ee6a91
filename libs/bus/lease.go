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
// to live, another incarnation of its holder replaced it, or its Bus was closed.
var ErrLost = errors.New("lease lost")

var errClosed = errors.New("bus closed")

// Lease is a key that its holder renews. Its methods are safe for concurrent use.
type Lease[T any] struct {
	bucket *Bucket[T]
	key    string
	holder string
	epoch  uint64
	ttl    time.Duration

	lost    chan struct{} // closed by keep when it ends
	stop    context.CancelFunc
	changed chan struct{} // has room for one; wakes keep to write a new value

	// Owned by keep; after it has ended, by the Release that ended it.
	revision uint64
	expires  time.Time // earlier than the server's, which counts from arrival

	mu       sync.Mutex
	data     []byte       // the value to be stored; guarded by mu
	version  uint64       // counts the changes of data; guarded by mu
	stored   uint64       // the version that the store has; guarded by mu
	waiters  []chan error // of capacity 1; receive the next write's result; guarded by mu
	cause    error        // why the lease ended; guarded by mu
	released bool         // guarded by mu
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
		changed:  make(chan struct{}, 1),
		revision: epoch,
		expires:  sent.Add(c.claim.TTL),
		data:     data,
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

// Set publishes a new value at once and waits until the server has it. Any error
// but ErrLost and an oversized value leaves it to the next renewal, which
// publishes it. A value that is replaced before it was sent is skipped, and an
// equal value is not written: of two that are equal one watch would report the
// first and a slower one the second, under different revisions.
func (l *Lease[T]) Set(ctx context.Context, value T) error {
	data, err := l.bucket.encode(l.key, value)
	if err != nil {
		return err
	}
	written, err := l.change(data)
	if err != nil {
		return err
	}
	return l.await(ctx, written)
}

// change has keep write data. The channel receives the result; it is nil if the
// store has the value.
func (l *Lease[T]) change(data []byte) (<-chan error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.endedLocked() {
		return nil, l.endErrLocked()
	}
	if !bytes.Equal(data, l.data) {
		l.data = data
		l.version++
	}
	if l.version == l.stored {
		return nil, nil
	}
	written := make(chan error, 1)
	l.waiters = append(l.waiters, written)
	select {
	case l.changed <- struct{}{}:
	default:
	}
	return written, nil
}

// await waits for the result of a change.
func (l *Lease[T]) await(ctx context.Context, written <-chan error) error {
	if written == nil {
		return nil
	}
	select {
	case err := <-written:
		return err
	case <-l.lost:
		return l.endErr()
	case <-ctx.Done():
		return unavailable(ctx.Err(), "write %s", l.bucket.name(l.key))
	}
}

// Release ends the lease: the key is deleted, and others see it at once. The
// lease is over even if an error is returned; its key then ends by itself. It
// takes no longer than the lease lives.
func (l *Lease[T]) Release(ctx context.Context) error {
	first, lost := l.release()
	l.stop()
	<-l.lost
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.ttl)
	defer cancel()
	if err := l.remove(ctx); err != nil && !lost {
		return err
	}
	return nil
}

// release reports whether the lease was not released before, and whether it was
// lost before.
func (l *Lease[T]) release() (first, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, lost = !l.released, l.cause != nil
	l.released = true
	return first, lost
}

// remove deletes the key unless it is another's by now. Where there is no key the
// bucket was made again: a marker wakes standbys, which would wait for this
// holder to come back.
func (l *Lease[T]) remove(ctx context.Context) error {
	rec := record{revision: l.revision}
	for range 2 { // the key may have a later revision than this lease knows
		err := l.bucket.remove(ctx, l.key, jetstream.WithExpectLastSequencePerSubject(rec.revision))
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if rec, err = l.bucket.last(ctx, l.key); err != nil {
			return err
		}
		if rec.revision != 0 && (!rec.live || rec.holder != l.holder) {
			return nil
		}
	}
	return nil // another was faster
}

// keep renews the lease three times within its time to live, more often while
// that fails, and ends with the lease. All writes of the lease are its own.
func (l *Lease[T]) keep(ctx context.Context) {
	defer close(l.lost)
	defer l.stop()
	timer := time.NewTimer(l.ttl / 3)
	defer timer.Stop()
	for {
		again, lost := l.bucket.bus.reconnected(), l.bucket.bus.history.Lost(l.bucket.spec.Name)
		select {
		case <-ctx.Done():
			l.closed()
			return
		case <-timer.C:
		case <-l.changed:
			if !l.pending() {
				continue // a renewal has written it
			}
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

// pending reports whether the store lacks the value.
func (l *Lease[T]) pending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version != l.stored
}

// maxAttempt bounds an attempt to renew a lease that lives long.
const maxAttempt = exchangeTimeout

// renew makes one attempt to write the value again, which takes a quarter of the
// time to live at most: one lost acknowledgement leaves time for another attempt.
// It returns when to try next, and whether the lease is still held.
func (l *Lease[T]) renew(ctx context.Context) (time.Duration, bool) {
	l.mu.Lock()
	data, version, waiters := l.data, l.version, l.waiters
	l.waiters = nil
	l.mu.Unlock()

	attempt, cancel := context.WithTimeout(ctx, min(l.ttl/4, maxAttempt, time.Until(l.expires)))
	err := l.write(attempt, data)
	cancel()

	left := time.Until(l.expires)
	if err != nil && left <= 0 && ctx.Err() == nil && !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %s not renewed within %v: %w", ErrLost, l.bucket.name(l.key), l.ttl, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range waiters {
		w <- err
	}
	switch {
	case err == nil:
		l.stored = version
		return l.ttl / 3, true
	case errors.Is(err, ErrLost):
		l.cause = err
		return 0, false
	}
	return min(l.ttl/20, time.Second, left), true
}

// write publishes the value under the revision last known. A conflict may be our
// own earlier write whose answer was lost.
func (l *Lease[T]) write(ctx context.Context, data []byte) error {
	err := l.publish(ctx, data)
	if !errors.Is(err, ErrConflict) {
		return err
	}
	if err := l.findRevision(ctx); err != nil {
		return err
	}
	return l.publish(ctx, data)
}

func (l *Lease[T]) publish(ctx context.Context, data []byte) error {
	sent := time.Now()
	revision, err := l.bucket.publish(ctx, l.key, data, nats.Header{headerHolder: {l.holder}},
		jetstream.WithExpectLastSequencePerSubject(l.revision),
		jetstream.WithMsgTTL(l.ttl))
	if err == nil {
		l.revision, l.expires = revision, sent.Add(l.ttl)
	}
	return err
}

// findRevision reads the key's revision if this lease wrote it, and else returns
// ErrLost. A replica that lags behind may answer with an older revision, which
// says nothing: then the next attempt decides.
func (l *Lease[T]) findRevision(ctx context.Context) error {
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

// endedLocked reports whether the holder must not act any more, although keep may
// still run.
func (l *Lease[T]) endedLocked() bool { return l.released || l.cause != nil }

func (l *Lease[T]) endErr() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endErrLocked()
}

func (l *Lease[T]) endErrLocked() error {
	if l.cause != nil {
		return l.cause
	}
	return fmt.Errorf("%w: %s was released", ErrLost, l.bucket.name(l.key))
}

// closed ends a lease whose Bus was closed.
func (l *Lease[T]) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.endedLocked() {
		l.cause = fmt.Errorf("%w: %w", ErrLost, errClosed)
	}
}
