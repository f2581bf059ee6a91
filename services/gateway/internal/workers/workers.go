// Package workers keeps a gateway's streams to the workers: one to each that
// the bucket workers names with an address, for as long as it is there.
package workers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/remote/exchange"
	"github.com/nereid-serving/nereid/libs/remote/stream"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Deps are what the streams work with.
type Deps struct {
	Bus     *bus.Bus
	Gateway *exchange.Gateway
	// Peer says how the worker at an address is reached.
	Peer func(address string) stream.Peer
	// Gone is told of a worker's incarnation whose lease has ended and whose
	// stream is down: it will answer nothing more. It does not block.
	Gone func(worker uint64)
	Log  *zap.Logger
}

// Keeper keeps the streams. It is safe for concurrent use.
type Keeper struct {
	deps    Deps
	epochs  map[string]uint64 // by key, of those with a lease; owned by Run
	lives   map[string]*life  // by key, of those that may have a lease again; owned by Run
	running sync.WaitGroup    // members

	mu      sync.Mutex
	members map[uint64]*member // by epoch; guarded by mu
}

// New makes a keeper that has no stream before Run.
func New(d Deps) *Keeper {
	return &Keeper{deps: d, epochs: make(map[string]uint64), lives: make(map[string]*life), members: make(map[uint64]*member)}
}

// Connected returns a channel that is closed when the present stream to a
// worker's incarnation ends; nil if there is none.
func (k *Keeper) Connected(worker uint64) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.members[worker]; m != nil {
		return m.stream
	}
	return nil
}

// Run keeps the streams until ctx is done. It is called once, when the gateway's
// identity is known.
func (k *Keeper) Run(ctx context.Context) error {
	d := k.deps
	bucket, err := bus.NewBucket(d.Bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	defer k.running.Wait()
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Err != nil:
			d.Log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", bus.Workers), zap.String("key", e.Key))...)
		case e.Kind == bus.EventPut:
			k.put(ctx, e.Key, e.Value)
		case e.Kind == bus.EventDelete:
			k.leave(e.Key)
			if !e.Expired { // it has given the lease up, and will not take it again
				delete(k.lives, e.Key)
			}
		}
	}
	return nil
}

// life is a worker's incarnation, which may be gone and come back: stopped for a
// while, or cut off. What was taken of it goes on then where it was, or the
// worker would keep its answers, and refuse streams, until the counts have
// caught up.
type life struct {
	epoch    uint64
	progress exchange.Progress
}

// member is a worker's incarnation, until its lease has ended and its stream is
// down.
type member struct {
	keeper *Keeper
	*life
	id      string
	address string
	leased  bool // guarded by the keeper's mu
	leaving bool // it has said that it stops; guarded by the keeper's mu
	// stream is closed when the present one ends; nil while there is none;
	// guarded by the keeper's mu.
	stream chan struct{}
}

func (k *Keeper) put(ctx context.Context, key string, v *nereidv1.WorkerValue) {
	epoch := v.GetEpoch()
	if k.epochs[key] == epoch || v.GetAddress() == "" {
		k.say(epoch, v.GetLeaving())
		return
	}
	k.leave(key)
	k.epochs[key] = epoch
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.members[epoch]; m != nil { // the lease had lapsed, the worker had not
		m.leased = true
		return
	}
	if l := k.lives[key]; l == nil || l.epoch != epoch {
		k.lives[key] = &life{epoch: epoch}
	}
	m := &member{keeper: k, life: k.lives[key], id: key, address: v.GetAddress(), leased: true, leaving: v.GetLeaving()}
	k.members[epoch] = m
	k.running.Go(func() { m.run(ctx) })
}

// say notes whether a worker has said that it stops.
func (k *Keeper) say(epoch uint64, leaving bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.members[epoch]; m != nil {
		m.leaving = leaving
	}
}

// leave lets a worker's stream be its last one, unless the lease comes back.
func (k *Keeper) leave(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m := k.members[k.epochs[key]]; m != nil {
		m.leased = false
	}
	delete(k.epochs, key)
}

// over reports whether the member's lease has ended, and forgets it then.
func (k *Keeper) over(m *member) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !m.leased {
		delete(k.members, m.epoch)
	}
	return !m.leased
}

// The pauses between streams grow from the first to the last, less up to a half
// at random.
const firstPause, lastPause = 20 * time.Millisecond, time.Second

// run keeps a stream to the worker.
func (m *member) run(ctx context.Context) {
	pause := firstPause
	for !m.keeper.over(m) {
		if m.once(ctx) {
			pause = firstPause
		}
		if lifecycle.Pause(ctx, pause-rand.N(pause/2)); ctx.Err() != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
	m.keeper.deps.Gone(m.epoch)
}

// once runs one stream and reports whether it lasted for a while.
func (m *member) once(ctx context.Context) bool {
	d := m.keeper.deps
	worker := zap.String("worker_id", m.id)
	session, err := d.Gateway.Dial(ctx, d.Peer(m.address), &m.progress)
	if err != nil {
		d.Log.Debug("no stream to a worker", append(obs.Err(err), worker)...)
		return false
	}
	d.Log.Info("stream to a worker begins", worker)
	begun := time.Now()
	m.setStream(make(chan struct{}))
	err = session.Run(ctx)
	m.setStream(nil)
	m.ended(ctx, err)
	return time.Since(begun) >= lastPause
}

// setStream notes the begin of a stream, or with nil its end.
func (m *member) setStream(stream chan struct{}) {
	m.keeper.mu.Lock()
	defer m.keeper.mu.Unlock()
	if m.stream != nil {
		close(m.stream)
	}
	m.stream = stream
}

// ended tells of a stream's end. It is a warning if nobody has said that it
// would come: neither the worker, which says that it stops and gives its lease
// back, nor this gateway's own end.
func (m *member) ended(ctx context.Context, err error) {
	m.keeper.mu.Lock()
	level := zap.WarnLevel
	if m.leaving || !m.leased || ctx.Err() != nil {
		level = zap.InfoLevel
	}
	m.keeper.mu.Unlock()
	m.keeper.deps.Log.Log(level, "stream to a worker has ended", append(obs.Err(err), zap.String("worker_id", m.id))...)
}
