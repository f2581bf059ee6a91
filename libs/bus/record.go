package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of the NATS key-value convention, and the one that names a lease's
// incarnation.
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	headerHolder    = "Nereid-Holder"
)

// record is the last message of a key.
type record struct {
	revision uint64 // of the value or of the marker of its end; zero without either
	live     bool
	data     []byte
	holder   string
}

func (b *Bucket[T]) last(ctx context.Context, key string) (record, error) {
	escaped, err := b.spec.escape(key)
	if err != nil {
		return record{}, err
	}
	stream, err := b.bind(ctx)
	if err != nil {
		return record{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	rec, err := lastOf(ctx, stream, b.prefix+escaped)
	if err != nil {
		return record{}, unavailable(err, "cannot read %s: check the connection to NATS", b.name(key))
	}
	return rec, nil
}

// lastOf returns the last record of a subject, the zero record if there is none.
func lastOf(ctx context.Context, stream jetstream.Stream, subject string) (record, error) {
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return record{}, nil
	}
	if err != nil {
		return record{}, err
	}
	ended := msg.Header.Get(headerOperation) != "" || msg.Header.Get(jetstream.MarkerReasonHeader) != ""
	return record{revision: msg.Sequence, live: !ended, data: msg.Data, holder: msg.Header.Get(headerHolder)}, nil
}

// bind looks the bucket's stream up once. The lock is not held meanwhile: two
// callers may both ask, and get the same.
func (b *Bucket[T]) bind(ctx context.Context) (jetstream.Stream, error) {
	b.mu.Lock()
	stream := b.stream
	b.mu.Unlock()
	if stream != nil {
		return stream, nil
	}
	stream, err := b.bus.js.Stream(ctx, StreamName(b.spec.Name))
	if err != nil {
		return nil, b.missing(err)
	}
	b.mu.Lock()
	b.stream = stream
	b.mu.Unlock()
	return stream, nil
}

func (b *Bucket[T]) publish(ctx context.Context, key string, data []byte, header nats.Header, opts ...jetstream.PublishOpt) (uint64, error) {
	escaped, err := b.spec.escape(key)
	if err != nil {
		return 0, err
	}
	if header == nil {
		header = nats.Header{}
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: b.prefix + escaped, Header: header, Data: data}
	ack, err := b.bus.js.PublishMsg(ctx, msg, opts...)
	if err == nil {
		return ack.Sequence, nil
	}
	if isConflict(err) {
		return 0, fmt.Errorf("write %s: %w: %w", b.name(key), ErrConflict, err)
	}
	return 0, unavailable(err, "cannot write %s: check the connection to NATS, and that the registry has made its buckets", b.name(key))
}

func isConflict(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	return api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
