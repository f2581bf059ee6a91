package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// syncedKey is a key that no name is escaped to. It exists since the bucket's
// only writer has marked the bucket as synced.
const syncedKey = "=="

// MarkSynced marks the bucket as complete, for the first time or after a loss. Watches then
// report missing keys as deleted. Marking it twice has no effect.
func (b *Bucket[T]) MarkSynced(ctx context.Context) error {
	synced, err := b.Synced(ctx)
	if synced || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if _, err := b.bus.js.PublishMsg(ctx, &nats.Msg{Subject: b.prefix + syncedKey, Header: nats.Header{}}); err != nil {
		return unavailable(err, "mark bucket %q as synced", b.spec.Name)
	}
	return nil
}

// Synced reports whether [Bucket.MarkSynced] was called since the bucket was made.
func (b *Bucket[T]) Synced(ctx context.Context) (bool, error) {
	stream, err := b.bind(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	_, err = stream.GetLastMsgForSubject(ctx, b.prefix+syncedKey)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, unavailable(err, "read whether bucket %q is synced", b.spec.Name)
	}
	return true, nil
}
