package scheduler

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
)

// refreshTimeout is how long a new leader waits to read who is alive.
const refreshTimeout = 2 * time.Second

// leases notifies the loop of who holds the leases of the pool's workers.
type leases struct {
	pool   string
	loop   *dispatch.Loop
	log    *zap.Logger
	bucket *bus.Bucket[*nereidv1.WorkerValue]
	known  chan struct{} // closed when the leases are known
	once   sync.Once
}

func newLeases(b *bus.Bus, pool string, loop *dispatch.Loop, log *zap.Logger) (*leases, error) {
	bucket, err := bus.NewBucket(b, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	return &leases{pool: pool, loop: loop, log: log, bucket: bucket, known: make(chan struct{})}, err
}

// follow watches the leases until ctx is done.
func (l *leases) follow(ctx context.Context) error {
	for e := range l.bucket.Watch(ctx) {
		if e.Kind == bus.EventCaughtUp {
			l.once.Do(func() { close(l.known) })
		}
		l.post(e)
	}
	return nil
}

// refresh reads who holds a lease now. The watch may lag behind just after the store was unavailable.
func (l *leases) refresh(ctx context.Context) {
	select {
	case <-l.known:
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	for e := range l.bucket.Watch(ctx) {
		if e.Kind == bus.EventCaughtUp {
			return
		}
		l.post(e)
	}
	l.log.Warn("who is alive could not be read anew: the leadership begins with what is known")
}

// post notifies the loop of a lease. A lease in another pool counts as none.
func (l *leases) post(e bus.Event[*nereidv1.WorkerValue]) {
	switch {
	case e.Kind == bus.EventDelete:
		l.loop.LeaseEnded(e.Key, e.Revision, !e.Expired)
	case e.Kind != bus.EventPut || e.Err != nil:
	case poolOf(e.Value) != l.pool:
		l.loop.LeaseEnded(e.Key, e.Revision, false)
	case e.Value.GetEpoch() == 0:
		l.loop.LeaseHeld(e.Key, e.Revision, e.Revision)
	default:
		l.loop.LeaseHeld(e.Key, e.Value.GetEpoch(), e.Revision)
	}
}

func poolOf(v *nereidv1.WorkerValue) string {
	if pool := v.GetLabels()[infer.PoolLabel]; pool != "" {
		return pool
	}
	return infer.DefaultPool
}
