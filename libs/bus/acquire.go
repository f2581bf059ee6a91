package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Claim describes the lease to acquire.
type Claim[T any] struct {
	// Key is the role, or the claimant's own id.
	Key string
	// TTL is how long the lease lives without renewal, in whole seconds. Zero
	// is [Config.Lease], or the bucket's own time.
	TTL time.Duration
	// Value returns the first value of the lease. It should contain the epoch, and may be
	// called several times.
	Value func(epoch uint64) T
	// Replace reports whether a lease with this value may be replaced before it
	// ends: that of the same holder's earlier incarnation. A process that was
	// restarted under its old id says yes and need not wait; the new epoch
	// fences off the earlier incarnation, which loses its lease should it still
	// run. Nil never replaces. A value that cannot be read is never replaced.
	Replace func(present T) bool
	// Epoch reads the epoch that a value keeps. With it a [Registration] gives
	// up when a later incarnation of the same holder has its key, so that two
	// processes of one id do not replace each other for ever. Nil never gives up.
	Epoch func(present T) uint64
}

// Acquire acquires a lease, and waits for it while another holds the key. It
// wakes when the holder releases the lease and when the lease ends, and tries
// again for as long as the server is away. It ends with ctx's error, or at once
// where the claim is invalid. The caller must Release the lease, which Acquire
// may also return if ctx ends while the server is about to grant it.
//
// After this process was cut off from the server it leaves a lease that has
// ended meanwhile to its holder for the time to live: a holder that was cut off
// as well could not renew it, and is back in a moment.
//
// With Replace nil this is the election of a leader; with Replace it is a
// service's registration under its own id.
func (b *Bucket[T]) Acquire(ctx context.Context, claim Claim[T]) (*Lease[T], error) {
	ttl, err := b.ttl(claim.TTL)
	if err != nil {
		return nil, err
	}
	escaped, err := b.spec.escape(claim.Key)
	if err != nil {
		return nil, err
	}
	claim.TTL = ttl
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &claimant[T]{bucket: b, claim: claim, holder: nuid.Next()}
	return c.wait(ctx, b.watch(ctx, escaped, ttl))
}

// claimant is one call of Acquire.
type claimant[T any] struct {
	bucket *Bucket[T]
	claim  Claim[T]
	holder string // distinguishes this incarnation of the lease from any other
	// attempted is the epoch of the last write. A value of that revision may be its
	// own, where the response was lost.
	attempted uint64
}

// wait tries whenever the key's state may have changed. Unless the watch says
// that another holds the key, it also tries by the clock: the server may not
// answer, or its answer be older or newer than what the watch has sent.
func (c *claimant[T]) wait(ctx context.Context, events <-chan Event[T]) (*Lease[T], error) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	retry.Stop()
	held := false // by another; also while a lost bucket lacks the key
	var failed retries
	for {
		select {
		case event, ok := <-events:
			if !ok {
				return nil, c.interrupted(ctx)
			}
			switch event.Kind {
			case EventPut:
				held = event.Revision != c.attempted && !c.mayReplace(event.Value, event.Err)
			case EventDelete:
				held = false
			}
			if held {
				retry.Stop()
				continue
			}
		case <-retry.C:
		}
		lease, err := c.tryAcquire(ctx)
		if err == nil {
			return lease, nil
		}
		if !errors.Is(err, ErrConflict) && errs.Of(err) != errs.StateUnavailable {
			return nil, err
		}
		c.bucket.bus.log.Debug("lease not acquired", zap.String("key", c.claim.Key), zap.Error(err))
		retry.Reset(failed.wait())
	}
}

func (c *claimant[T]) interrupted(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = errClosed
	}
	return unavailable(err, "wait for the lease of %s", c.bucket.name(c.claim.Key))
}

func (c *claimant[T]) mayReplace(present T, unreadable error) bool {
	return unreadable == nil && c.claim.Replace != nil && c.claim.Replace(present)
}

// tryAcquire writes the lease if the key is free. The epoch must be in the value
// and be its revision, so the write is bound to the revision that the whole
// bucket has: it is repeated while other keys change meanwhile. ErrConflict
// means that another holds the key.
func (c *claimant[T]) tryAcquire(ctx context.Context) (*Lease[T], error) {
	for {
		rec, err := c.bucket.last(ctx, c.claim.Key)
		if err != nil {
			return nil, err
		}
		if !c.free(rec) {
			return nil, fmt.Errorf("acquire the lease of %s: %w", c.bucket.name(c.claim.Key), ErrConflict)
		}
		lease, err := c.write(ctx, rec.revision)
		if !errors.Is(err, ErrConflict) {
			return lease, err
		}
		if lifecycle.Pause(ctx, rand.N(10*time.Millisecond)); ctx.Err() != nil {
			return nil, unavailable(ctx.Err(), "acquire the lease of %s", c.bucket.name(c.claim.Key))
		}
	}
}

// free reports whether the key may be written. Its value may be the
// claimant's own, of an attempt whose response was lost.
func (c *claimant[T]) free(rec record) bool {
	if !rec.live || rec.holder == c.holder {
		return true
	}
	present, err := c.bucket.codec.Decode(rec.data)
	return c.mayReplace(present, err)
}

func (c *claimant[T]) write(ctx context.Context, expected uint64) (*Lease[T], error) {
	b := c.bucket
	info, _, err := b.bus.observe(ctx, b.spec.Name)
	if err != nil {
		return nil, b.missing(err)
	}
	epoch := info.State.LastSeq + 1
	c.attempted = epoch
	data, err := b.encode(c.claim.Key, c.claim.Value(epoch))
	if err != nil {
		return nil, err
	}
	// The end of ctx does not interrupt the write: a lease of which the response is
	// lost is not released, and others would wait for its end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.claim.TTL/2)
	defer cancel()
	sent := time.Now()
	_, err = b.publish(ctx, c.claim.Key, data, nats.Header{headerHolder: {c.holder}},
		jetstream.WithExpectLastSequence(epoch-1),
		jetstream.WithExpectLastSequencePerSubject(expected),
		jetstream.WithMsgTTL(c.claim.TTL))
	if err != nil {
		return nil, err
	}
	return newLease(c, epoch, data, sent), nil
}
