package bus

import (
	"context"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Keys returns the keys that have a value, sorted. A key that is written again
// meanwhile is among them.
func (b *Bucket[T]) Keys(ctx context.Context) ([]string, error) {
	stream, err := b.bus.js.Stream(ctx, StreamName(b.spec.Name))
	if err != nil {
		return nil, b.missing(err)
	}
	live, err := b.list(ctx, stream.CachedInfo().State.LastSeq)
	if err != nil {
		return nil, unavailable(err, "list the keys of bucket %q", b.spec.Name)
	}
	keys := make([]string, 0, len(live))
	for escaped, alive := range live {
		if !alive || escaped == syncedKey {
			continue
		}
		key, err := b.spec.unescape(escaped)
		if err != nil {
			return nil, unavailable(err, "list the keys of bucket %q", b.spec.Name)
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys, nil
}

// list returns the escaped keys, and whether they have a value, of a bucket that
// was at the given revision.
func (b *Bucket[T]) list(ctx context.Context, revision uint64) (map[string]bool, error) {
	kv, err := b.bus.js.KeyValue(ctx, b.spec.Name)
	if err != nil {
		return nil, err
	}
	source, stop, err := startWatcher(ctx, kv, jetstream.AllKeys, jetstream.MetaOnly())
	if err != nil {
		return nil, err
	}
	defer stop()
	live := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case entry, ok := <-source.Updates():
			if !ok {
				return nil, errWatchEnded
			}
			if entry != nil {
				live[entry.Key()] = entry.Operation() == jetstream.KeyValuePut
				continue
			}
			unlisted, err := b.unlisted(ctx, jetstream.AllKeys, revision, func(key string) bool { _, listed := live[key]; return listed })
			for key := range unlisted {
				live[key] = true
			}
			return live, err
		}
	}
}

// unlisted returns the values of keys that a NATS watch has not listed, by
// escaped key. The bucket was at the given revision before the watch began. NATS
// ends its list after as many entries as there were keys, and a key that is
// written again while it lists comes twice, or late.
func (b *Bucket[T]) unlisted(ctx context.Context, filter string, revision uint64, listed func(escaped string) bool) (map[string]record, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	stream, err := b.bus.js.Stream(ctx, StreamName(b.spec.Name))
	if err != nil || stream.CachedInfo().State.LastSeq == revision {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(b.prefix+filter))
	if err != nil {
		return nil, err
	}
	records := map[string]record{}
	for subject := range info.State.Subjects {
		key := strings.TrimPrefix(subject, b.prefix)
		if key == syncedKey || listed(key) {
			continue
		}
		rec, err := lastOf(ctx, stream, subject)
		if err != nil {
			return nil, err
		}
		if rec.live {
			records[key] = rec
		}
	}
	return records, nil
}
