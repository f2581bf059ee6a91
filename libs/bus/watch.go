package bus

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Watch tells the bucket's present values, then EventCaughtUp, then every
// change until ctx or the Bus ends; then the channel is closed. It never
// fails: while the server is away nothing comes, and afterwards what changed
// meanwhile is told, then EventCaughtUp again. The receiver must either
// receive or end ctx; it need not drain the channel.
//
// In a bucket of leases, renewals that change nothing are not told. And since
// leases cannot be renewed while the server is away, their ends are held back
// after a reconnect for the bucket's time to live: a holder that takes its
// lease again in that time is told as a new value, not as an end.
func (b *Bucket[T]) Watch(ctx context.Context) <-chan Event[T] {
	return b.watch(ctx, jetstream.AllKeys, b.spec.Lease)
}

// WatchKey is [Bucket.Watch] for one key. The error says that there can be no
// such key.
func (b *Bucket[T]) WatchKey(ctx context.Context, key string) (<-chan Event[T], error) {
	escaped, err := escapeKey(key)
	if err != nil {
		return nil, err
	}
	return b.watch(ctx, escaped, b.spec.Lease), nil
}

// backlog is how many events may wait for the receiver, who can then take many
// changes in before it acts on them.
const backlog = 256

func (b *Bucket[T]) watch(ctx context.Context, filter string, grace time.Duration) <-chan Event[T] {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(b.bus.life, cancel)
	w := &watch[T]{
		bucket: b,
		filter: filter,
		events: make(chan Event[T], backlog),
		grace:  grace,
		known:  map[string]mark{},
		held:   map[string]uint64{},
	}
	b.bus.running.Go(func() {
		defer cancel()
		defer unhook()
		defer close(w.events)
		w.run(ctx)
	})
	return w.events
}

// watch outlives the NATS watches that feed it. All fields are owned by run.
type watch[T any] struct {
	bucket *Bucket[T]
	filter string
	events chan Event[T]
	grace  time.Duration // how long ends are held back after a reconnect

	known    map[string]mark   // what the receiver was told, by escaped key
	held     map[string]uint64 // revisions of the ends held back, by escaped key
	timer    <-chan time.Time  // fires when they are told; nil while none are held back
	seen     map[string]bool   // keys met by the present NATS watch; nil once caught up
	revision uint64            // highest revision told or known to be passed
	made     time.Time         // when the bucket was made: a new one counts from 1 again
	failures int               // NATS watches that failed in a row
}

// mark is a value that the receiver was told.
type mark struct {
	revision uint64
	data     []byte // kept for leases only
}

var (
	errReconnected = errors.New("reconnected")
	errWatchEnded  = errors.New("watch ended")
)

func (w *watch[T]) run(ctx context.Context) {
	for {
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReconnected) {
			continue
		}
		w.bucket.bus.log.Debug("watch starts again", zap.String("bucket", w.bucket.spec.Name), zap.Error(err))
		lifecycle.Pause(ctx, backoff(w.failures))
		w.failures++
	}
}

// once runs one NATS watch from the start of the bucket to its end.
func (w *watch[T]) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	again := w.bucket.bus.reconnected()
	source, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer stopWatcher(source)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
			return errReconnected
		case <-w.timer:
			w.endGrace(ctx)
		case entry, ok := <-source.Updates():
			if !ok {
				return errWatchEnded
			}
			w.take(ctx, entry)
		}
	}
}

// open starts a NATS watch. The bucket's revision is read first: what the
// watch begins with holds everything up to it.
func (w *watch[T]) open(ctx context.Context) (jetstream.KeyWatcher, error) {
	kv, err := w.bucket.bus.js.KeyValue(ctx, w.bucket.spec.Name)
	if err != nil {
		return nil, err
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	info := status.(*jetstream.KeyValueBucketStatus).StreamInfo()
	if !info.Created.Equal(w.made) {
		for key, told := range w.known {
			w.known[key] = mark{data: told.data}
		}
		w.made, w.revision = info.Created, 0
	}
	w.revision = max(w.revision, info.State.LastSeq)
	clear(w.held) // the new watch tells anew what has ended
	if w.timer = nil; w.grace > 0 && len(w.known) > 0 {
		w.timer = time.After(w.grace)
	}
	w.seen = map[string]bool{}
	return kv.Watch(ctx, w.filter)
}

// stopWatcher ends a NATS watch, and takes what it still delivers, since it
// closes only once that is taken. A watch that has ended by itself, with its
// context or its connection, may not close; but one delivery can be stuck in
// front of the full channel, and needs room.
func stopWatcher(source jetstream.KeyWatcher) {
	if source.Stop() == nil {
		for range source.Updates() {
		}
		return
	}
	for {
		select {
		case _, open := <-source.Updates():
			if !open {
				return
			}
		default:
			return
		}
	}
}

func (w *watch[T]) take(ctx context.Context, entry jetstream.KeyValueEntry) {
	if entry == nil {
		w.catchUp(ctx)
		return
	}
	key, revision := entry.Key(), entry.Revision()
	w.revision = max(w.revision, revision)
	if entry.Operation() != jetstream.KeyValuePut {
		w.drop(ctx, key, revision, entry.Operation() == jetstream.KeyValuePurge)
		return
	}
	if w.seen != nil {
		w.seen[key] = true
	}
	delete(w.held, key)
	if w.note(key, revision, entry.Value()) {
		w.send(ctx, w.put(key, revision, entry.Value()))
	}
}

// note keeps what is told of a key, and reports whether it is news.
func (w *watch[T]) note(key string, revision uint64, data []byte) bool {
	old, ok := w.known[key]
	if ok && old.revision == revision {
		return false
	}
	if w.bucket.spec.Lease == 0 {
		w.known[key] = mark{revision: revision}
		return true
	}
	w.known[key] = mark{revision, data}
	return !ok || !bytes.Equal(old.data, data)
}

func (w *watch[T]) put(escaped string, revision uint64, data []byte) Event[T] {
	event := Event[T]{Kind: EventPut, Revision: revision}
	if event.Key, event.Err = unescapeKey(escaped); event.Err != nil {
		event.Key = escaped
		return event
	}
	event.Value, event.Err = w.bucket.decode(data)
	return event
}

// drop tells the end of a key, unless the receiver never heard of it or it is
// to be held back.
func (w *watch[T]) drop(ctx context.Context, escaped string, revision uint64, expired bool) {
	if _, ok := w.known[escaped]; !ok {
		return
	}
	if expired && w.timer != nil {
		w.held[escaped] = revision
		return
	}
	delete(w.held, escaped)
	delete(w.known, escaped)
	key, err := unescapeKey(escaped)
	if err != nil {
		key = escaped
	}
	w.send(ctx, Event[T]{Kind: EventDelete, Key: key, Revision: revision, Expired: expired})
}

// catchUp ends the list of present values: what it did not name is gone.
func (w *watch[T]) catchUp(ctx context.Context) {
	for _, key := range slices.Sorted(maps.Keys(w.known)) {
		if !w.seen[key] {
			w.drop(ctx, key, w.revision, true)
		}
	}
	w.seen, w.failures = nil, 0
	w.send(ctx, Event[T]{Kind: EventCaughtUp, Revision: w.revision})
}

// endGrace tells the ends that were held back.
func (w *watch[T]) endGrace(ctx context.Context) {
	w.timer = nil
	for _, key := range slices.Sorted(maps.Keys(w.held)) {
		w.drop(ctx, key, w.held[key], true)
	}
}

func (w *watch[T]) send(ctx context.Context, event Event[T]) {
	select {
	case w.events <- event:
	case <-ctx.Done():
	}
}
