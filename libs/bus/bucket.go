package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nereid-serving/nereid/libs/errs"
)

// What a caller must distinguish from a store that does not answer. Neither
// carries a reason: the caller knows what they mean to its own caller.
var (
	// ErrNotFound says that the key has no value.
	ErrNotFound = errors.New("no such key")
	// ErrConflict says that the key has another revision than expected, or a
	// value where none was expected.
	ErrConflict = errors.New("changed by another writer")
)

// Bucket is typed access to one bucket. Its methods are safe for concurrent
// use. One exchange with the server takes 5 s at most, also where ctx has more:
// a request that is in flight when the connection breaks is never answered.
// Errors other than ErrNotFound and ErrConflict (use errors.Is) have a reason:
// state_unavailable where the store cannot be reached, after which a write may or
// may not have happened.
type Bucket[T any] struct {
	bus    *Bus
	spec   Spec
	codec  Codec[T]
	prefix string

	mu     sync.Mutex
	stream jetstream.Stream // guarded by mu; nil until first used
}

// Entry is a value as stored.
type Entry[T any] struct {
	Key   string
	Value T
	// Revision is the bucket-wide number of the write that made the value.
	Revision uint64
}

// NewBucket gives typed access to a bucket of the table. It asks nothing of
// the server; EnsureBuckets must have been called by some process before use.
func NewBucket[T any](b *Bus, name string, codec Codec[T]) (*Bucket[T], error) {
	spec, ok := findSpec(name)
	if !ok {
		return nil, errs.New(errs.Bug, "no bucket %q in the bucket table", name)
	}
	return &Bucket[T]{bus: b, spec: spec, codec: codec, prefix: SubjectPrefix(name)}, nil
}

// Get returns the value of key, or ErrNotFound.
func (b *Bucket[T]) Get(ctx context.Context, key string) (Entry[T], error) {
	rec, err := b.last(ctx, key)
	if err != nil {
		return Entry[T]{}, err
	}
	if !rec.live {
		return Entry[T]{}, fmt.Errorf("get %s: %w", b.name(key), ErrNotFound)
	}
	value, err := b.codec.Decode(rec.data)
	if err != nil {
		return Entry[T]{}, unavailable(err, "cannot read the value of %s", b.name(key))
	}
	return Entry[T]{Key: key, Value: value, Revision: rec.revision}, nil
}

// Create writes a value where none is and returns its revision, or ErrConflict.
func (b *Bucket[T]) Create(ctx context.Context, key string, value T) (uint64, error) {
	return b.create(ctx, key, value)
}

// CreateFor is Create of a value that expires after a time.
func (b *Bucket[T]) CreateFor(ctx context.Context, key string, value T, d time.Duration) (uint64, error) {
	return b.create(ctx, key, value, jetstream.WithMsgTTL(wholeSeconds(d)))
}

// UpdateFor is Update to a value that expires after a time.
func (b *Bucket[T]) UpdateFor(ctx context.Context, key string, value T, lastRevision uint64, d time.Duration) (uint64, error) {
	return b.write(ctx, key, value, jetstream.WithExpectLastSequencePerSubject(lastRevision), jetstream.WithMsgTTL(wholeSeconds(d)))
}

// wholeSeconds is a time to live, of which NATS takes whole seconds, rounded up.
func wholeSeconds(d time.Duration) time.Duration {
	return max(d+time.Second-1, time.Second).Truncate(time.Second)
}

func (b *Bucket[T]) create(ctx context.Context, key string, value T, opts ...jetstream.PublishOpt) (uint64, error) {
	const attempts = 3 // the marker of an earlier value may vanish in between
	for attempt := 1; ; attempt++ {
		rec, err := b.last(ctx, key)
		if err != nil {
			return 0, err
		}
		if rec.live {
			return 0, fmt.Errorf("create %s: %w", b.name(key), ErrConflict)
		}
		revision, err := b.write(ctx, key, value, append(opts, jetstream.WithExpectLastSequencePerSubject(rec.revision))...)
		if !errors.Is(err, ErrConflict) || attempt == attempts {
			return revision, err
		}
	}
}

// Update replaces the value of revision lastRevision and returns the new
// revision, or ErrConflict if the key has another revision by now.
func (b *Bucket[T]) Update(ctx context.Context, key string, value T, lastRevision uint64) (uint64, error) {
	return b.write(ctx, key, value, jetstream.WithExpectLastSequencePerSubject(lastRevision))
}

// Put writes a value unconditionally and returns its revision.
func (b *Bucket[T]) Put(ctx context.Context, key string, value T) (uint64, error) {
	return b.write(ctx, key, value)
}

// Delete removes the value of revision lastRevision; zero removes any. It
// returns ErrConflict if the key has another revision by now.
func (b *Bucket[T]) Delete(ctx context.Context, key string, lastRevision uint64) error {
	if lastRevision != 0 {
		return b.remove(ctx, key, jetstream.WithExpectLastSequencePerSubject(lastRevision))
	}
	return b.remove(ctx, key)
}

// remove writes the marker of a key's end.
func (b *Bucket[T]) remove(ctx context.Context, key string, opts ...jetstream.PublishOpt) error {
	opts = append(opts, jetstream.WithMsgTTL(markerTTL))
	_, err := b.publish(ctx, key, nil, nats.Header{headerOperation: {operationDelete}}, opts...)
	return err
}

// write publishes a value in a bucket of lasting values. In a bucket of leases
// it would make the key permanent: the time to live belongs to the value.
func (b *Bucket[T]) write(ctx context.Context, key string, value T, opts ...jetstream.PublishOpt) (uint64, error) {
	if b.spec.Lease > 0 {
		return 0, errs.New(errs.Bug, "bucket %q holds leases: write through Acquire", b.spec.Name)
	}
	data, err := b.encode(key, value)
	if err != nil {
		return 0, err
	}
	return b.publish(ctx, key, data, nil, opts...)
}

func (b *Bucket[T]) encode(key string, value T) ([]byte, error) {
	data, err := b.codec.Encode(value)
	if err != nil {
		return nil, errs.Wrap(errs.Bug, err, "encode the value of %s", b.name(key))
	}
	if len(data) > b.spec.MaxValue {
		return nil, errs.New(errs.BodyTooLarge, "the value of %s has more than the %d bytes that the bucket takes", b.name(key), b.spec.MaxValue)
	}
	return data, nil
}

func (b *Bucket[T]) missing(err error) error {
	return unavailable(err, "cannot open bucket %q: check the connection to NATS, and that the registry has made its buckets", b.spec.Name)
}

func (b *Bucket[T]) name(key string) string {
	return fmt.Sprintf("%q in bucket %q", key, b.spec.Name)
}

// ttl returns d, or the default where d is zero, if NATS can keep it.
func (b *Bucket[T]) ttl(d time.Duration) (time.Duration, error) {
	if b.spec.Lease == 0 {
		return 0, errs.New(errs.Bug, "bucket %q holds no leases", b.spec.Name)
	}
	d = cmp.Or(d, b.bus.lease, b.spec.Lease)
	if d < time.Second || d%time.Second != 0 {
		return 0, errs.New(errs.Bug, "a lease lives for whole seconds, not %v", d)
	}
	return d, nil
}
