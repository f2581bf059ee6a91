package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// EnsureBuckets makes every bucket of the table, or brings an existing one to
// its row. Several processes may do so at once. Errors have the reason
// state_unavailable.
func (b *Bus) EnsureBuckets(ctx context.Context) error { return b.ensureAll(ctx, true) }

// KeepBuckets makes buckets again that are gone, and anew those that have gone
// back to an earlier state, until ctx is done. Like [Bus.EnsureBuckets], which
// is to be called before, it is for those who may make buckets.
func (b *Bus) KeepBuckets(ctx context.Context) {
	for attempt := 0; ctx.Err() == nil; {
		again := b.reconnected()
		if err := b.ensureAll(ctx, false); err != nil && ctx.Err() == nil {
			if attempt == 0 && b.Connected() {
				b.log.Warn("buckets cannot be kept: it is tried again", zap.Error(err))
			}
			lifecycle.Pause(ctx, backoff(attempt))
			attempt++
			continue
		}
		attempt = 0
		select {
		case <-ctx.Done():
		case <-again:
		case <-b.past.missing:
		}
	}
}

func (b *Bus) ensureAll(ctx context.Context, update bool) error {
	for _, spec := range Buckets() { // so that what another process has made anew stays
		if _, _, err := b.look(ctx, spec.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return unavailable(err, "cannot look at the bucket %q", spec.Name)
		}
	}
	stale := b.past.stale()
	for _, spec := range Buckets() {
		err := error(nil)
		if stale {
			err = b.remove(ctx, spec)
		}
		if err == nil {
			err = b.ensure(ctx, spec, update)
		}
		if err != nil {
			return unavailable(err, "cannot make the bucket %q: allow this account to make streams, or check replicas (%d) against the size of the NATS cluster", spec.Name, b.replicas)
		}
	}
	return nil
}

func (b *Bus) ensure(ctx context.Context, spec Spec, update bool) error {
	stream, err := b.js.Stream(ctx, StreamName(spec.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		before := b.past.seen(spec.Name)
		stream, err = b.js.CreateStream(ctx, b.streamConfig(spec, b.firstRevision(before)))
		if err == nil {
			if !before.made.IsZero() {
				b.log.Warn("bucket made again", zap.String("bucket", spec.Name), zap.Uint64("first_revision", stream.CachedInfo().Config.FirstSeq))
			}
			_, _, err = b.look(ctx, spec.Name)
			return err
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		stream, err = b.js.Stream(ctx, StreamName(spec.Name)) // another process was faster
	}
	if err != nil || !update {
		return err
	}
	// How writes reach the disk and where revisions begin is settled when a
	// stream is made; a higher first revision would purge it at the next start.
	is := stream.CachedInfo().Config
	cfg := b.streamConfig(spec, is.FirstSeq)
	cfg.PersistMode = is.PersistMode
	_, err = b.js.UpdateStream(ctx, cfg)
	return err
}

// firstRevision is what a bucket's revisions begin with: the microseconds since
// 1970. No bucket is written a million times a second for as long as it is
// there, so one that is made later has higher revisions than any before of its
// name ever had, although nothing is left of it. A clock that is behind is made
// up for by what this process has seen. As numbers they are below 2^53 until
// the year 2255, so that programs which know no other numbers keep them.
func (b *Bus) firstRevision(before sighting) uint64 {
	const room = 1_000_000 // for what was written and not seen here
	now := uint64(time.Now().UnixMicro())
	if before.last == 0 {
		return now
	}
	return max(now, before.last+room)
}

// remove deletes a bucket that has gone back with its store: what others have
// seen of it is later than what it holds. One that was made since then stays.
func (b *Bus) remove(ctx context.Context, spec Spec) error {
	stale := b.past.seen(spec.Name).stale
	stream, err := b.js.Stream(ctx, StreamName(spec.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !stream.CachedInfo().Created.Equal(stale) {
		return nil
	}
	err = b.js.DeleteStream(ctx, StreamName(spec.Name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}
