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

	"github.com/nereid-serving/nereid/libs/bus/history"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Watch sends the bucket's present values, then EventCaughtUp, then every change
// until ctx or the Bus ends; then it closes the channel. It never fails: while the
// server is away nothing is sent, and afterwards what changed meanwhile, then
// EventCaughtUp again. The receiver must either receive or end ctx; it need not
// drain the channel.
//
// In a bucket of leases, renewals that change nothing are not sent. And since
// leases cannot be renewed while the server is away, their ends are deferred after
// a reconnect for the bucket's time to live: a holder that acquires its lease
// again in that time is sent as a new value, not as an end.
//
// The ends of keys that a lost bucket lacks are deferred too: see [EventLost].
func (b *Bucket[T]) Watch(ctx context.Context) <-chan Event[T] {
	return b.watch(ctx, jetstream.AllKeys, b.spec.Lease)
}

// WatchKey is [Bucket.Watch] for one key. The error says that there can be no
// such key.
func (b *Bucket[T]) WatchKey(ctx context.Context, key string) (<-chan Event[T], error) {
	escaped, err := b.spec.escape(key)
	if err != nil {
		return nil, err
	}
	return b.watch(ctx, escaped, b.spec.Lease), nil
}

// WatchOwner is [Bucket.Watch] for the keys of one owner, in a bucket whose keys
// have owners. Events of all of them come in the order of their revisions.
func (b *Bucket[T]) WatchOwner(ctx context.Context, owner string) (<-chan Event[T], error) {
	if !b.spec.KeyedByOwner {
		return nil, errs.New(errs.Bug, "the keys of bucket %q have no owners", b.spec.Name)
	}
	escaped, err := escapeOwner(owner)
	if err != nil {
		return nil, err
	}
	return b.watch(ctx, escaped+ownerEnd+">", b.spec.Lease), nil
}

// backlog is how many events may wait for the receiver, who can then receive many
// changes before it acts on them.
const backlog = 256

// watch watches the keys that match filter. It defers ends for the grace after a
// reconnect.
func (b *Bucket[T]) watch(ctx context.Context, filter string, grace time.Duration) <-chan Event[T] {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(b.bus.life, cancel)
	w := &watch[T]{
		bucket:   b,
		filter:   filter,
		events:   make(chan Event[T], backlog),
		grace:    grace,
		known:    map[string]version{},
		deferred: map[string]uint64{},
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
	grace  time.Duration // how long ends are deferred after a reconnect

	known    map[string]version  // what the receiver knows, by escaped key
	deferred map[string]uint64   // revisions of the deferred ends, by escaped key
	timer    <-chan time.Time    // fires when they are sent; nil while none are deferred
	graceEnd time.Time           // when it does
	unsynced bool                // ends are deferred until the bucket is marked as synced
	listed   map[string]bool     // keys that the present NATS watch has listed; nil once caught up
	began    uint64              // the bucket's revision when the present NATS watch began
	revision uint64              // highest revision sent or known to be passed
	at       history.Observation // of the bucket, when the present NATS watch began
	opened   bool                // there was a NATS watch before
	failed   retries             // consecutive NATS watches that failed
}

// version is a value that the receiver knows.
type version struct {
	revision uint64
	data     []byte // kept for leases only
}

var (
	errReconnected = errors.New("reconnected, or the bucket was made again")
	errWatchEnded  = errors.New("watch ended")
)

func (w *watch[T]) run(ctx context.Context) {
	for {
		again := w.bucket.bus.reconnected() // after which there is nothing to wait for
		err := w.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReconnected) {
			continue
		}
		w.bucket.bus.log.Debug("watch starts again", zap.String("bucket", w.bucket.spec.Name), zap.Error(err))
		lifecycle.PauseUntil(ctx, again, w.failed.wait())
	}
}

// once runs one NATS watch from the start of the bucket to its end.
func (w *watch[T]) once(ctx context.Context) error {
	again := w.bucket.bus.reconnected()
	source, stop, err := w.open(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again:
			return errReconnected
		case <-w.at.Lost:
			return errReconnected
		case <-w.timer:
			w.endGrace(ctx)
		case entry, ok := <-source.Updates():
			if !ok {
				return errWatchEnded
			}
			if err := w.handle(ctx, entry); err != nil {
				return err
			}
		}
	}
}

// open starts a NATS watch, which the caller must stop. It reads the bucket's
// revision first: the values that the watch lists include everything up to it.
func (w *watch[T]) open(ctx context.Context) (source jetstream.KeyWatcher, stop func(), err error) {
	bus, name := w.bucket.bus, w.bucket.spec.Name
	info, at, err := bus.observe(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	kv, err := bus.js.KeyValue(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	grace := w.grace
	if w.opened && at.Incarnation != w.at.Incarnation {
		grace = max(grace, LossGrace)
		w.forgetRevisions(ctx)
	}
	w.opened, w.at = true, at
	w.revision = max(w.revision, info.State.LastSeq)
	clear(w.deferred) // the new watch lists what has ended
	w.deferEnds(grace)
	w.listed, w.began = map[string]bool{}, info.State.LastSeq
	return startWatcher(ctx, kv, w.filter)
}

// startWatcher starts a NATS watch, which stop ends. The end of ctx does not
// interrupt the start: the server would keep the consumer of a watch that ended
// before its response came.
func startWatcher(ctx context.Context, kv jetstream.KeyValue, filter string, opts ...jetstream.WatchOpt) (source jetstream.KeyWatcher, stop func(), err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	timeout := time.AfterFunc(exchangeTimeout, cancel)
	source, err = kv.Watch(ctx, filter, opts...)
	timeout.Stop()
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return source, func() {
		stopWatcher(source)
		cancel()
	}, nil
}

// LossGrace is how long a key that a lost bucket lacks is still treated as
// present: the time in which its writer writes it again.
const LossGrace = 5 * time.Second

// forgetRevisions starts over in a bucket that was made again: revisions of the
// one before say nothing about it.
func (w *watch[T]) forgetRevisions(ctx context.Context) {
	for key, known := range w.known {
		w.known[key] = version{data: known.data}
	}
	w.revision = 0
	all := w.filter == jetstream.AllKeys // only such a watch sees the mark
	w.unsynced = w.bucket.spec.Persistent && all
	w.send(ctx, Event[T]{Kind: EventLost})
}

// deferEnds defers ends for the grace from now on, or longer where they are
// deferred already.
func (w *watch[T]) deferEnds(grace time.Duration) {
	w.timer = nil
	now := time.Now()
	if len(w.known) > 0 && now.Add(grace).After(w.graceEnd) {
		w.graceEnd = now.Add(grace)
	}
	if now.Before(w.graceEnd) {
		w.timer = time.After(w.graceEnd.Sub(now))
	}
}

// stopWatcher ends a NATS watch and drains it, since it closes only once it is
// drained. A watch that has ended by itself, with its connection, may not close; but one delivery can be blocked by the full channel.
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

// handle takes in an entry of the NATS watch; nil is the end of its list.
func (w *watch[T]) handle(ctx context.Context, entry jetstream.KeyValueEntry) error {
	if entry == nil {
		return w.catchUp(ctx)
	}
	key, revision := entry.Key(), entry.Revision()
	w.revision = max(w.revision, revision)
	switch {
	case key == syncedKey:
		w.markedSynced(ctx)
	case revision < w.known[key].revision: // it was on its way when catchUp read a later one
	case entry.Operation() != jetstream.KeyValuePut:
		w.end(ctx, key, revision, entry.Operation() == jetstream.KeyValuePurge)
	default:
		w.put(ctx, key, revision, entry.Value())
	}
	return nil
}

// put sends a key's value that the receiver does not know.
func (w *watch[T]) put(ctx context.Context, key string, revision uint64, data []byte) {
	if w.listed != nil {
		w.listed[key] = true
	}
	delete(w.deferred, key)
	if w.update(key, revision, data) {
		w.send(ctx, w.putEvent(key, revision, data))
	}
}

// update records a key's value, and reports whether the receiver does not know
// it.
func (w *watch[T]) update(key string, revision uint64, data []byte) bool {
	old, ok := w.known[key]
	if ok && old.revision == revision {
		return false
	}
	if w.bucket.spec.Lease == 0 {
		w.known[key] = version{revision: revision}
		return true
	}
	w.known[key] = version{revision, data}
	return !ok || !bytes.Equal(old.data, data)
}

func (w *watch[T]) putEvent(escaped string, revision uint64, data []byte) Event[T] {
	event := Event[T]{Kind: EventPut, Revision: revision}
	if event.Key, event.Err = w.bucket.spec.unescape(escaped); event.Err != nil {
		event.Key = escaped
		return event
	}
	event.Value, event.Err = w.bucket.codec.Decode(data)
	return event
}

// end sends the end of a key that the receiver knows, or defers it.
func (w *watch[T]) end(ctx context.Context, escaped string, revision uint64, expired bool) {
	if _, ok := w.known[escaped]; !ok {
		return
	}
	if expired && (w.timer != nil || w.unsynced) {
		w.deferred[escaped] = revision
		return
	}
	delete(w.deferred, escaped)
	delete(w.known, escaped)
	key, err := w.bucket.spec.unescape(escaped)
	if err != nil {
		key = escaped
	}
	w.send(ctx, Event[T]{Kind: EventDelete, Key: key, Revision: revision, Expired: expired})
}

// catchUp ends the list of present values: keys that it lacks have ended, unless
// they were written again meanwhile.
func (w *watch[T]) catchUp(ctx context.Context) error {
	unlisted, err := w.bucket.unlisted(ctx, w.filter, w.began, func(key string) bool { return w.listed[key] })
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(unlisted)) {
		w.put(ctx, key, unlisted[key].revision, unlisted[key].data)
	}
	for _, key := range slices.Sorted(maps.Keys(w.known)) {
		if !w.listed[key] {
			w.end(ctx, key, w.revision, true)
		}
	}
	w.listed, w.failed = nil, 0
	w.send(ctx, Event[T]{Kind: EventCaughtUp, Revision: w.revision})
	return nil
}

func (w *watch[T]) endGrace(ctx context.Context) {
	w.timer = nil
	if !w.unsynced {
		w.sendDeferred(ctx)
	}
}

// markedSynced ends the wait for the bucket's writer: keys that the bucket lacks
// have ended.
func (w *watch[T]) markedSynced(ctx context.Context) {
	waited := w.unsynced
	w.unsynced = false
	if w.listed != nil {
		return // the end of the list is still to come
	}
	if waited {
		w.timer = nil
		w.sendDeferred(ctx)
	}
	w.send(ctx, Event[T]{Kind: EventCaughtUp, Revision: w.revision})
}

func (w *watch[T]) sendDeferred(ctx context.Context) {
	for _, key := range slices.Sorted(maps.Keys(w.deferred)) {
		w.end(ctx, key, w.deferred[key], true)
	}
}

func (w *watch[T]) send(ctx context.Context, event Event[T]) {
	select {
	case w.events <- event:
	case <-ctx.Done():
	}
}
