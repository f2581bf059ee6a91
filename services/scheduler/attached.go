package scheduler

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// errSuperseded says that a scheduler of a higher epoch has written the pool's value.
var errSuperseded = errors.New("a scheduler of a later epoch has written which workers may have got batches")

// attached is the pool's value in the bucket attached: which workers may have received batches. Only the pool's
// leader writes it, under its epoch.
type attached struct {
	pool     string
	bucket   *bus.Bucket[*nereidv1.AttachedValue]
	recorded func(version uint64) // notifies the loop
	log      *zap.Logger
	wake     chan struct{} // signals that there is something to write

	mu      sync.Mutex
	version uint64       // of what the store is to hold; guarded by mu
	history core.History // guarded by mu

	// Owned by the goroutine that leads the pool.
	epoch    uint64
	revision uint64 // of the value; 0 if there is none
}

func newAttached(b *bus.Bus, pool string, log *zap.Logger) (*attached, error) {
	bucket, err := bus.NewBucket(b, bus.Attached, bus.Values[*nereidv1.AttachedValue]())
	return &attached{pool: pool, bucket: bucket, log: log, wake: make(chan struct{}, 1)}, err
}

// Record makes the store hold a history. It does not block.
func (a *attached) Record(version uint64, h core.History) {
	a.mu.Lock()
	a.version, a.history = version, h
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // already signaled: the writer will find the newest
	}
}

// inherit rewrites the stored value under the epoch and returns its history: from then on no earlier leader can write
// the value. It retries as long as the store is unavailable.
func (a *attached) inherit(ctx context.Context, epoch uint64) (core.History, error) {
	a.epoch = epoch
	for {
		stored, err := a.read(ctx)
		if errors.Is(err, errSuperseded) {
			return core.History{}, err
		}
		h := core.Inherit(stored, epoch)
		if err == nil {
			err = a.put(ctx, h)
		}
		if err == nil {
			a.mu.Lock()
			a.version, a.history = 0, h
			a.mu.Unlock()
			return h, nil
		}
		if !errors.Is(err, bus.ErrConflict) { // otherwise an earlier leader was quicker
			a.log.Warn("which workers may have got batches is not known yet", obs.Err(err)...)
			lifecycle.Pause(ctx, retry)
		}
		if ctx.Err() != nil {
			return core.History{}, ctx.Err()
		}
	}
}

// read returns what the store holds; nil if it holds nothing.
func (a *attached) read(ctx context.Context) (*core.History, error) {
	present, err := a.bucket.Get(ctx, a.pool)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		a.revision = 0
		return nil, nil
	case err != nil:
		return nil, err
	case present.Value.GetEpoch() > a.epoch:
		return nil, errSuperseded
	}
	a.revision = present.Revision
	return &core.History{Workers: present.Value.GetWorkers(), IncompleteBefore: present.Value.GetIncompleteBefore()}, nil
}

// put writes the value if it has not changed since it was last read or written.
func (a *attached) put(ctx context.Context, h core.History) error {
	value := &nereidv1.AttachedValue{Schema: nereidv1.Schema, Epoch: a.epoch, Workers: h.Workers, IncompleteBefore: h.IncompleteBefore}
	var revision uint64
	var err error
	if a.revision == 0 {
		revision, err = a.bucket.Create(ctx, a.pool, value)
	} else {
		revision, err = a.bucket.Update(ctx, a.pool, value, a.revision)
	}
	if err == nil {
		a.revision = revision
	}
	return err
}

// keep writes recorded histories until ctx is done, and writes them again if the store has lost the value. It returns
// errSuperseded if another scheduler leads the pool.
func (a *attached) keep(ctx context.Context) error {
	events, err := a.bucket.WatchKey(ctx, a.pool)
	if err != nil {
		return err
	}
	for {
		select {
		case <-a.wake:
		case e, ok := <-events:
			switch {
			case !ok:
				return nil
			case e.Kind == bus.EventPut && e.Err == nil && e.Value.GetEpoch() > a.epoch:
				return errSuperseded
			case e.Kind != bus.EventDelete && e.Kind != bus.EventLost:
				continue
			}
		}
		if err := a.write(ctx); err != nil {
			return err
		}
	}
}

// write writes the current history into the store, however long that takes.
func (a *attached) write(ctx context.Context) error {
	a.mu.Lock()
	version, h := a.version, a.history
	a.mu.Unlock()
	for ctx.Err() == nil {
		err := a.put(ctx, h)
		if err == nil {
			a.recorded(version)
			return nil
		}
		if errors.Is(err, bus.ErrConflict) { // or an earlier write of our own was not confirmed
			_, err = a.read(ctx)
		}
		switch {
		case errors.Is(err, errSuperseded):
			return err
		case err != nil && errs.Of(err) != errs.Canceled && ctx.Err() == nil:
			a.log.Warn("workers that are new get no batches: the store does not take their names", obs.Err(err)...)
			lifecycle.Pause(ctx, retry)
		}
	}
	return nil
}
