package scheduler

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// absence is for how long a worker may be neither connected nor known by a
// lease before it counts as dead.
const absence = 6 * time.Second

// unnoticed is for how long requests of a dead worker may be undecided when its
// scheduler dies, too: as long as gateways wait for a scheduler, and this one
// then for its workers, with room.
const unnoticed = 20 * time.Second

// workers is who of the pool is alive: a worker is gone when its lease has
// ended and its stream is down, or when another life of it holds the lease. It
// is safe for concurrent use.
type workers struct {
	pool string
	gone func(worker uint64, died bool) // told once for each; died is false for one that gave up its lease
	log  *zap.Logger

	mu      sync.Mutex
	leases  map[string]uint64    // incarnations by id; guarded by mu
	present map[uint64]*presence // by incarnation: those with a lease or a stream, or that had them lately; guarded by mu
	died    time.Time            // when a lease last ended by itself; guarded by mu
	known   chan struct{}        // closed when the leases are known
	once    sync.Once
}

// presence is how a life of a worker is known.
type presence struct {
	leased, connected bool
	left              bool // it gave up its lease
}

func newWorkers(pool string, gone func(uint64, bool), log *zap.Logger) *workers {
	return &workers{
		pool: pool, gone: gone, log: log, leases: make(map[string]uint64), present: make(map[uint64]*presence), known: make(chan struct{}),
	}
}

// follow follows the leases until ctx is done.
func (w *workers) follow(ctx context.Context, b *bus.Bus) error {
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Kind == bus.EventCaughtUp:
			w.once.Do(func() { close(w.known) })
		case e.Kind == bus.EventDelete:
			w.lease(e.Key, 0, !e.Expired)
		case e.Kind == bus.EventPut && e.Err == nil:
			w.lease(e.Key, w.incarnation(e), false)
		}
	}
	return nil
}

// incarnation is the life of the worker that holds the lease; 0 if it belongs to
// another pool.
func (w *workers) incarnation(e bus.Event[*nereidv1.WorkerValue]) uint64 {
	pool := e.Value.GetLabels()[infer.PoolLabel]
	if pool == "" {
		pool = infer.DefaultPool
	}
	switch {
	case pool != w.pool:
		return 0
	case e.Value.GetEpoch() == 0:
		return e.Revision
	}
	return e.Value.GetEpoch()
}

// lease notes which life of a worker holds its lease; 0 is none, where left says
// that the one before gave it up.
func (w *workers) lease(id string, incarnation uint64, left bool) {
	w.mu.Lock()
	before := w.leases[id]
	if before == incarnation {
		w.mu.Unlock()
		return
	}
	if incarnation == 0 {
		delete(w.leases, id)
	} else {
		w.leases[id] = incarnation
		w.of(incarnation).leased = true
	}
	p := w.present[before]
	if p == nil {
		w.mu.Unlock()
		return
	}
	p.leased, p.left = false, left
	if incarnation == 0 && !left {
		w.died = time.Now()
	}
	if incarnation != 0 {
		p.connected = false // whatever its stream does
	}
	w.mu.Unlock()
	w.lose(before)
}

// of is the presence of a life. The caller holds mu.
func (w *workers) of(incarnation uint64) *presence {
	p := w.present[incarnation]
	if p == nil {
		p = new(presence)
		w.present[incarnation] = p
	}
	return p
}

// lose tells that a worker is gone if it has neither lease nor stream.
func (w *workers) lose(incarnation uint64) {
	w.mu.Lock()
	p := w.present[incarnation]
	if p == nil || p.leased || p.connected {
		w.mu.Unlock()
		return
	}
	delete(w.present, incarnation)
	w.mu.Unlock()
	if !p.left {
		w.log.Warn("worker is gone", zap.Uint64("incarnation", incarnation))
	}
	w.gone(incarnation, !p.left)
}

// connect notes that a worker's stream is there.
func (w *workers) connect(incarnation uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of(incarnation).connected = true
}

// disconnect notes that a worker's stream has ended. One whose lease has not
// been heard of yet has a moment for it; the end of a lease tells of the others.
func (w *workers) disconnect(incarnation uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.present[incarnation]
	if p == nil {
		return // another life of the worker holds the lease
	}
	if p.connected = false; !p.leased {
		time.AfterFunc(absence, func() { w.lose(incarnation) })
	}
}

// wait returns the living workers, as soon as the leases are known, and whether
// another has died so lately that the scheduler before may not have noticed.
func (w *workers) wait(ctx context.Context) (list []uint64, blind bool) {
	select {
	case <-w.known:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for incarnation, p := range w.present {
		if p.leased {
			list = append(list, incarnation)
		}
	}
	return list, !w.died.IsZero() && time.Since(w.died) < unnoticed
}
