package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus/history"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// EnsureBuckets makes every bucket of the table, or brings an existing one to
// its row. Several processes may do so at once. Errors have the reason
// state_unavailable.
func (b *Bus) EnsureBuckets(ctx context.Context) error { return b.ensureAll(ctx, true) }

// KeepBuckets makes missing buckets again until ctx is done. Only a process that
// may make buckets calls it, after [Bus.EnsureBuckets].
func (b *Bus) KeepBuckets(ctx context.Context) {
	var failed retries
	for ctx.Err() == nil {
		again := b.reconnected()
		if err := b.ensureAll(ctx, false); err != nil && ctx.Err() == nil {
			if failed == 0 && b.Connected() {
				b.log.Warn("cannot keep the buckets, trying again", zap.Error(err))
			}
			lifecycle.Pause(ctx, failed.wait())
			continue
		}
		failed = 0
		select {
		case <-ctx.Done():
		case <-again:
		case <-b.missing:
		}
	}
}

func (b *Bus) ensureAll(ctx context.Context, update bool) error {
	for _, spec := range Buckets() {
		if err := b.ensure(ctx, spec, update); err != nil {
			return unavailable(err, "cannot make the bucket %q: allow this account to make streams, or check replicas (%d) against the size of the NATS cluster", spec.Name, b.replicas)
		}
	}
	return nil
}

func (b *Bus) ensure(ctx context.Context, spec Spec, update bool) error {
	info, _, err := b.observe(ctx, spec.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = b.create(ctx, spec)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		info, _, err = b.observe(ctx, spec.Name) // another process was faster
	}
	if err != nil || !update {
		return err
	}
	// How writes reach the disk and where revisions begin is settled when a
	// stream is made; a higher first revision would purge it at the next start.
	cfg := b.streamConfig(spec, info.Config.FirstSeq)
	cfg.PersistMode = info.Config.PersistMode
	_, err = b.js.UpdateStream(ctx, cfg)
	return err
}

func (b *Bus) create(ctx context.Context, spec Spec) error {
	stream, err := b.js.CreateStream(ctx, b.streamConfig(spec, b.history.FirstRevision(spec.Name, time.Now())))
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if _, lost := b.history.Observe(spec.Name, info.Config.FirstSeq, info.State.LastSeq); lost {
		b.log.Warn("bucket made again", zap.String("bucket", spec.Name), zap.Uint64("first_revision", info.Config.FirstSeq))
	}
	return nil
}

// observe asks for a bucket's stream and notices whether the store has lost what
// the bucket held.
func (b *Bus) observe(ctx context.Context, bucket string) (*jetstream.StreamInfo, history.Observation, error) {
	stream, err := b.js.Stream(ctx, StreamName(bucket))
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			b.requestBuckets()
			if b.history.Observed(bucket) {
				b.reportLoss(bucket, "the bucket is missing")
			}
		}
		return nil, history.Observation{}, err
	}
	info := stream.CachedInfo()
	newest, lost := b.history.Observe(bucket, info.Config.FirstSeq, info.State.LastSeq)
	if lost {
		b.reportLoss(bucket, "the bucket was made again at "+info.Created.Format(time.RFC3339))
		b.requestBuckets() // others may be missing
	}
	return info, newest, nil
}

// requestBuckets wakes [Bus.KeepBuckets].
func (b *Bus) requestBuckets() {
	select {
	case b.missing <- struct{}{}:
	default:
	}
}

func (b *Bus) reportLoss(bucket, cause string) {
	level := zap.DebugLevel
	if b.history.ShouldReport(time.Now()) {
		level = zap.WarnLevel
	}
	b.log.Log(level, "the control plane's store has lost what it held: serving goes on, a registry makes the buckets again, and each service writes its own values again",
		zap.String("bucket", bucket), zap.String("cause", cause))
}
