package bus

import (
	"context"
	"errors"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Registration is a service's own key, held for as long as the service runs.
// Unlike a [Lease] it outlives the server's absence: a lost lease is acquired
// again as soon as the server is back, since a service that serves goes on
// meanwhile. Its methods are safe for concurrent use.
type Registration[T any] struct {
	bucket *Bucket[T]
	claim  Claim[T]
	epoch  uint64

	mu    sync.Mutex
	value T         // guarded by mu
	lease *Lease[T] // guarded by mu
}

// Register acquires the key and waits while another holds it; it replaces an entry
// that claim.Replace accepts. The caller runs [Registration.Run].
func (b *Bucket[T]) Register(ctx context.Context, claim Claim[T]) (*Registration[T], error) {
	lease, err := b.Acquire(ctx, claim)
	if err != nil {
		return nil, err
	}
	r := &Registration[T]{bucket: b, claim: claim, epoch: lease.Epoch(), lease: lease, value: claim.Value(lease.Epoch())}
	r.claim.Value = func(uint64) T {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.value
	}
	return r, nil
}

// Epoch is the revision at which the key was first acquired: the service's
// incarnation. It stays the same when the lease is acquired again.
func (r *Registration[T]) Epoch() uint64 { return r.epoch }

// Set changes the value and publishes it, now or when the server is back. The
// error says that it is not published yet.
func (r *Registration[T]) Set(ctx context.Context, value T) error {
	data, err := r.bucket.encode(r.claim.Key, value)
	if err != nil {
		return err
	}
	lease, written, err := r.change(value, data)
	if err != nil {
		return err
	}
	return lease.await(ctx, written)
}

// change hands the value to the present lease. Under the lock, so that leases get
// values in the order in which they were set.
func (r *Registration[T]) change(value T, data []byte) (*Lease[T], <-chan error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.value = value
	written, err := r.lease.change(data)
	return r.lease, written, err
}

// Run keeps the key until ctx is done, then deletes it. It fails with the
// reason already_exists when a later incarnation has the key; see [Claim.Epoch].
func (r *Registration[T]) Run(ctx context.Context) error {
	for {
		lease := r.current()
		select {
		case <-ctx.Done():
			return lease.Release(context.WithoutCancel(ctx))
		case <-lease.Lost():
		}
		next, err := r.again(ctx)
		if errors.Is(err, context.Canceled) {
			return lease.Release(context.WithoutCancel(ctx)) // which wakes standbys if the bucket is another
		}
		if err != nil {
			return err
		}
		r.replace(next)
	}
}

// again acquires the key again.
func (r *Registration[T]) again(ctx context.Context) (*Lease[T], error) {
	claim := r.claim
	if claim.Epoch == nil {
		return r.bucket.Acquire(ctx, claim)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	claim.Replace = func(present T) bool {
		if claim.Epoch(present) > r.epoch {
			giveUp(errs.New(errs.AlreadyExists, "another process runs under the id %q: give each an id of its own", claim.Key))
			return false
		}
		return r.claim.Replace != nil && r.claim.Replace(present)
	}
	next, err := r.bucket.Acquire(ctx, claim)
	if cause := context.Cause(ctx); err != nil && errs.Of(cause) == errs.AlreadyExists {
		return nil, cause
	}
	return next, err
}

// replace makes next the present lease. It may have been acquired with a value
// from before the last Set, and then writes the present one.
func (r *Registration[T]) replace(next *Lease[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lease = next
	if data, err := r.bucket.encode(r.claim.Key, r.value); err == nil {
		_, _ = next.change(data) // Run learns of the lease's end from Lost
	}
}

func (r *Registration[T]) current() *Lease[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease
}
