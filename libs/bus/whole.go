package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// wholeKey is a key that no name is escaped to. It is there from when the
// bucket's one writer has said that the bucket is whole.
const wholeKey = "=="

// SetWhole says that the bucket holds all that it should, for the first time or
// after it was lost. Watches tell then that what it does not hold is gone. It
// may be said again.
func (b *Bucket[T]) SetWhole(ctx context.Context) error {
	stream, err := b.bind(ctx)
	if err != nil {
		return err
	}
	whole, err := b.marked(ctx, stream)
	if whole || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if _, err := b.bus.js.PublishMsg(ctx, &nats.Msg{Subject: b.prefix + wholeKey, Header: nats.Header{}}); err != nil {
		return unavailable(err, "say that bucket %q is whole", b.spec.Name)
	}
	return nil
}

// Whole reports whether that was said since the bucket was made.
func (b *Bucket[T]) Whole(ctx context.Context) (bool, error) {
	stream, err := b.bind(ctx)
	if err != nil {
		return false, err
	}
	return b.marked(ctx, stream)
}

func (b *Bucket[T]) marked(ctx context.Context, stream jetstream.Stream) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	_, err := stream.GetLastMsgForSubject(ctx, b.prefix+wholeKey)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, unavailable(err, "ask whether bucket %q is whole", b.spec.Name)
	}
	return true, nil
}
