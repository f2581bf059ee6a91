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

// unnoticed is for how long requests of a lost worker may be undecided when its
// scheduler dies, too: as long as gateways wait for a scheduler, and this one
// then for its workers, with room.
const unnoticed = 20 * time.Second

// freshly is for how long a new term waits to read who is alive.
const freshly = 2 * time.Second

// workers is who of the pool is alive: a worker is gone when its lease has
// ended and its stream is down, or when another life of it holds the lease. It
// is safe for concurrent use.
type workers struct {
	pool string
	// gone is told once of each life that is gone, as news but for one that gave
	// up its lease; and once more, not as news, when one that might have been
	// cut off only is known to have ended.
	gone func(worker uint64, news bool)
	log  *zap.Logger

	mu      sync.Mutex
	leases  map[string]holding   // by worker's id; guarded by mu
	present map[uint64]*presence // by incarnation: those with a lease or a stream, or that had them lately; guarded by mu
	died    time.Time            // when a life was last replaced by another; guarded by mu
	known   chan struct{}        // closed when the leases are known
	once    sync.Once
	bucket  *bus.Bucket[*nereidv1.WorkerValue] // set before known is closed
}

// holding is what is known of the lease under a worker's id.
type holding struct {
	incarnation uint64 // 0 is none
	revision    uint64
}

// presence is how a life of a worker is known.
type presence struct {
	id                string // empty until its lease is heard of
	leased, connected bool
	left              bool // it gave up its lease
	replaced          bool // another life holds the lease
	// missing is since when it has had neither lease nor stream. It may be cut
	// off from the store alone, and run what it has begun.
	missing time.Time
}

func newWorkers(pool string, gone func(uint64, bool), log *zap.Logger) *workers {
	return &workers{
		pool: pool, gone: gone, log: log, leases: make(map[string]holding), present: make(map[uint64]*presence), known: make(chan struct{}),
	}
}

// follow follows the leases until ctx is done.
func (w *workers) follow(ctx context.Context, b *bus.Bus) error {
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	w.bucket = bucket
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Kind == bus.EventCaughtUp:
			w.once.Do(func() { close(w.known) })
		case e.Kind == bus.EventDelete:
			w.lease(e.Key, holding{revision: e.Revision}, !e.Expired)
		case e.Kind == bus.EventPut && e.Err == nil:
			w.lease(e.Key, holding{w.incarnation(e), e.Revision}, false)
		}
	}
	return nil
}

// refresh takes in who holds a lease now. What follows the leases may be behind
// just after the store was away, and the requests of a worker that is not waited
// for would run twice.
func (w *workers) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, freshly)
	defer cancel()
	for e := range w.bucket.Watch(ctx) {
		switch {
		case e.Kind == bus.EventCaughtUp:
			return
		case e.Kind == bus.EventPut && e.Err == nil:
			w.lease(e.Key, holding{w.incarnation(e), e.Revision}, false)
		}
	}
	w.log.Warn("who is alive could not be read anew: the term begins with what is known")
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

// lease notes which life of a worker holds its lease; where none does, left says
// that the one before gave it up. What is older than what is known changes
// nothing.
func (w *workers) lease(id string, now holding, left bool) {
	for _, incarnation := range w.note(id, now, left) {
		w.lose(incarnation)
	}
}

// note returns the lives that may be gone.
func (w *workers) note(id string, now holding, left bool) []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.leases[id]
	if now.revision < before.revision {
		return nil
	}
	w.leases[id] = now
	switch now.incarnation {
	case before.incarnation:
		return nil
	case 0:
		if p := w.present[before.incarnation]; p != nil {
			p.leased, p.left = false, left
		}
		return []uint64{before.incarnation}
	}
	p := w.of(now.incarnation)
	p.id, p.leased, p.left, p.missing = id, true, false, time.Time{}
	return w.replace(id, now.incarnation)
}

// replace ends all lives of a worker but the present one, whatever their streams
// do, and returns them. The caller holds mu.
func (w *workers) replace(id string, by uint64) []uint64 {
	var ended []uint64
	for incarnation, p := range w.present {
		if p.id != id || incarnation == by {
			continue
		}
		p.leased, p.connected, p.replaced = false, false, true
		if !p.left {
			w.died = time.Now()
		}
		ended = append(ended, incarnation)
	}
	return ended
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
	told, ended := !p.missing.IsZero(), p.left || p.replaced
	switch {
	case ended:
		delete(w.present, incarnation)
	case !told:
		p.missing = time.Now()
	}
	w.prune()
	w.mu.Unlock()
	if told && !ended {
		return
	}
	news := !told && !p.left
	if news {
		w.log.Warn("worker is gone", zap.Uint64("incarnation", incarnation))
	}
	w.gone(incarnation, news)
}

// prune forgets who has been missing for long. The caller holds mu.
func (w *workers) prune() {
	for incarnation, p := range w.present {
		if !p.missing.IsZero() && time.Since(p.missing) > unnoticed {
			delete(w.present, incarnation)
			if w.leases[p.id].incarnation == 0 {
				delete(w.leases, p.id)
			}
		}
	}
}

// connect notes that a worker's stream is there.
func (w *workers) connect(incarnation uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.of(incarnation)
	p.connected, p.missing = true, time.Time{}
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

// wait returns what [workers.expected] does as soon as the leases are known.
func (w *workers) wait(ctx context.Context) (list []uint64, blind bool) {
	select {
	case <-w.known:
		w.refresh(ctx)
	case <-ctx.Done():
	}
	return w.expected()
}

// expected returns the workers that a new term must hear of: those that are
// alive, and those that have been missing for so short a time that they may have
// been cut off only. And whether another has died so lately that the scheduler
// before may not have noticed.
func (w *workers) expected() (list []uint64, blind bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prune()
	for incarnation, p := range w.present {
		if !p.left {
			list = append(list, incarnation)
		}
	}
	return list, !w.died.IsZero() && time.Since(w.died) < unnoticed
}
