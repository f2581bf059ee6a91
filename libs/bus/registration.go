package bus

import (
	"context"
	"errors"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Registration is a service's own key, held for as long as the service runs.
// Unlike a [Lease] it outlives the server's absence: when the lease is lost it
// is acquired anew as soon as the server is back, since a service that serves
// goes on serving meanwhile. Its methods are safe for concurrent use.
type Registration[T any] struct {
	bucket *Bucket[T]
	claim  Claim[T]
	epoch  uint64

	setting sync.Mutex // orders the values that are published

	mu    sync.Mutex
	value T // guarded by mu
	lease *Lease[T]
}

// Register acquires the key and waits while another holds it; an entry that
// claim.Replace accepts is taken over. The caller runs [Registration.Run].
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
// incarnation. It stays the same when the lease is acquired anew.
func (r *Registration[T]) Epoch() uint64 { return r.epoch }

// Set changes the value and publishes it, now or when the server is back. The
// error says that it is not published yet.
func (r *Registration[T]) Set(ctx context.Context, value T) error {
	r.setting.Lock()
	defer r.setting.Unlock()
	r.mu.Lock()
	r.value = value
	lease := r.lease
	r.mu.Unlock()
	return lease.Set(ctx, value)
}

// Run keeps the key until ctx is done, then deletes it. It fails with the
// reason already_exists when a later life has the key; see [Claim.Epoch].
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
			return nil
		}
		if err != nil {
			return err
		}
		r.take(ctx, next)
	}
}

// again acquires the key anew.
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

// take makes a lease the present one. What was set while it was acquired it may
// not have, and it tells that now or when it is renewed.
func (r *Registration[T]) take(ctx context.Context, next *Lease[T]) {
	r.setting.Lock()
	defer r.setting.Unlock()
	r.mu.Lock()
	r.lease = next
	value := r.value
	r.mu.Unlock()
	_ = next.Set(ctx, value)
}

func (r *Registration[T]) current() *Lease[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease
}
