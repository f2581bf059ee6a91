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

	"github.com/nereid-serving/nereid/libs/errs"
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
//
// Nor is what a lost bucket does not hold told as ended at once: see
// [EventLost].
func (b *Bucket[T]) Watch(ctx context.Context) <-chan Event[T] {
	return b.watch(ctx, jetstream.AllKeys, b.spec.Lease, tells)
}

// WatchKey is [Bucket.Watch] for one key. The error says that there can be no
// such key.
func (b *Bucket[T]) WatchKey(ctx context.Context, key string) (<-chan Event[T], error) {
	escaped, err := b.spec.escape(key)
	if err != nil {
		return nil, err
	}
	return b.watch(ctx, escaped, b.spec.Lease, tells), nil
}

// WatchOwner is [Bucket.Watch] for the keys of one owner, in a bucket whose keys
// have owners. Events of all of them come in the order of their revisions.
func (b *Bucket[T]) WatchOwner(ctx context.Context, owner string) (<-chan Event[T], error) {
	if !b.spec.Owned {
		return nil, errs.New(errs.Bug, "the keys of bucket %q have no owners", b.spec.Name)
	}
	escaped, err := escapeOwner(owner)
	if err != nil {
		return nil, err
	}
	return b.watch(ctx, escaped+ownerEnd+">", b.spec.Lease, tells), nil
}

// backlog is how many events may wait for the receiver, who can then take many
// changes in before it acts on them.
const backlog = 256

// purpose is what a watch is for.
type purpose bool

const (
	// tells is a watch that tells others what a bucket holds.
	tells purpose = false
	// claims is that of [Bucket.Acquire]. It tells of a bucket that has gone
	// back, too: the leases that are taken there show everybody that it has.
	claims purpose = true
)

// watch holds ends back for the grace after a reconnect.
func (b *Bucket[T]) watch(ctx context.Context, filter string, grace time.Duration, why purpose) <-chan Event[T] {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(b.bus.life, cancel)
	w := &watch[T]{
		bucket: b,
		filter: filter,
		events: make(chan Event[T], backlog),
		grace:  grace,
		single: filter != jetstream.AllKeys,
		stale:  why == claims,
		known:  map[string]mark{},
		held:   map[string]uint64{},
	}
	started := b.bus.start(func() {
		defer cancel()
		defer unhook()
		defer close(w.events)
		w.run(ctx)
	})
	if !started {
		cancel()
		close(w.events)
	}
	return w.events
}

// watch outlives the NATS watches that feed it. All fields are owned by run.
type watch[T any] struct {
	bucket *Bucket[T]
	filter string
	events chan Event[T]
	grace  time.Duration // how long ends are held back after a reconnect
	single bool          // of some keys, which do not say when the bucket is whole
	stale  bool          // also of a bucket that has gone back

	known    map[string]mark   // what the receiver was told, by escaped key
	held     map[string]uint64 // revisions of the ends held back, by escaped key
	timer    <-chan time.Time  // fires when they are told; nil while none are held back
	ends     time.Time         // when it does
	whole    bool              // ends are held back until the bucket is whole, however long that takes
	seen     map[string]bool   // keys met by the present NATS watch; nil once caught up
	revision uint64            // highest revision told or known to be passed
	at       sighting          // of the bucket, when the present NATS watch began
	opened   bool              // a NATS watch was there before
	failures int               // NATS watches that failed in a row
}

// mark is a value that the receiver was told.
type mark struct {
	revision uint64
	data     []byte // kept for leases only
}

var (
	errReconnected = errors.New("reconnected, or the bucket is another")
	errWatchEnded  = errors.New("watch ended")
)

func (w *watch[T]) run(ctx context.Context) {
	for {
		again := w.bucket.bus.reconnected() // after which nothing is to be waited for
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReconnected) {
			continue
		}
		w.bucket.bus.log.Debug("watch starts again", zap.String("bucket", w.bucket.spec.Name), zap.Error(err))
		lifecycle.PauseUntil(ctx, again, backoff(w.failures))
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
		case <-w.at.lost:
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
	bus, name := w.bucket.bus, w.bucket.spec.Name
	info, now, err := bus.look(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := bus.believed(name, info); err != nil && !w.stale {
		return nil, err
	}
	kv, err := bus.js.KeyValue(ctx, name)
	if err != nil {
		return nil, err
	}
	grace := w.grace
	if w.opened && now.life != w.at.life {
		grace = max(grace, LossGrace)
		w.lose(ctx)
	}
	w.opened, w.at = true, now
	w.revision = max(w.revision, info.State.LastSeq)
	clear(w.held) // the new watch tells anew what has ended
	w.hold(grace)
	w.seen = map[string]bool{}
	return kv.Watch(ctx, w.filter)
}

// LossGrace is for how long keys that a lost bucket does not hold any more are
// told to be there yet: the time in which their writers write them again.
const LossGrace = 5 * time.Second

// lose takes in that the bucket has lost what it held. Revisions may be those
// that were told before, for other values.
func (w *watch[T]) lose(ctx context.Context) {
	for key, told := range w.known {
		w.known[key] = mark{data: told.data}
	}
	w.revision = 0
	w.whole = w.bucket.spec.Restored && !w.single && len(w.known) > 0
	w.send(ctx, Event[T]{Kind: EventLost})
}

// hold has ends be held back, for at least as long as they are already.
func (w *watch[T]) hold(grace time.Duration) {
	w.timer = nil
	now := time.Now()
	if len(w.known) > 0 && now.Add(grace).After(w.ends) {
		w.ends = now.Add(grace)
	}
	if left := w.ends.Sub(now); left > 0 {
		w.timer = time.After(left)
	}
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
	w.bucket.bus.past.reach(w.bucket.spec.Name, revision)
	if key == wholeKey {
		w.restored(ctx)
		return
	}
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
	if event.Key, event.Err = w.bucket.spec.unescape(escaped); event.Err != nil {
		event.Key = escaped
		return event
	}
	event.Value, event.Err = w.bucket.codec.Decode(data)
	return event
}

// drop tells the end of a key, unless the receiver never heard of it or it is
// to be held back.
func (w *watch[T]) drop(ctx context.Context, escaped string, revision uint64, expired bool) {
	if _, ok := w.known[escaped]; !ok {
		return
	}
	if expired && (w.timer != nil || w.whole) {
		w.held[escaped] = revision
		return
	}
	delete(w.held, escaped)
	delete(w.known, escaped)
	key, err := w.bucket.spec.unescape(escaped)
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
	if w.timer = nil; w.whole {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(w.held)) {
		w.drop(ctx, key, w.held[key], true)
	}
}

// restored takes in that the bucket is whole: what it does not hold is gone.
func (w *watch[T]) restored(ctx context.Context) {
	before := w.whole
	w.whole = false
	if w.seen != nil {
		return // the end of the list is still to come
	}
	if before {
		w.endGrace(ctx)
	}
	w.send(ctx, Event[T]{Kind: EventCaughtUp, Revision: w.revision})
}

func (w *watch[T]) send(ctx context.Context, event Event[T]) {
	select {
	case w.events <- event:
	case <-ctx.Done():
	}
}
