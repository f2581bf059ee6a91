package worker

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// leave announces that the worker is about to stop, and waits until nothing is assigned to it any more and it runs
// nothing, for at most the leave timeout. It does not wait if this is the only worker, which nobody can replace, or
// if the store is unavailable: then the announcement reaches nobody, and the lease expires by itself.
func (w *Worker) leave(ctx context.Context, lease *registration, b *mailbox) {
	switch {
	case w.config.LeaveTimeout == 0:
		return
	case !w.deps.Bus.Connected():
		w.deps.Log.Warn("stopping without waiting for the models to be ready elsewhere: NATS is away, and the lease ends by itself")
		return
	case lease.alone(ctx, w.config.ID):
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.config.LeaveTimeout)
	defer cancel()
	w.leaving.Store(true)
	b.notify()
	w.deps.Log.Info("leaving: waiting until the models are ready elsewhere", zap.Duration("at_most", w.config.LeaveTimeout))
	go w.noteAway(ctx, cancel) // ends with the wait
	b.waitEmpty(ctx)
}

// awayLook is how often a leaving worker checks its connection.
const awayLook = 100 * time.Millisecond

// noteAway ends a wait once NATS has been unavailable for as long as a lease lives: by then the others consider the
// worker gone. A restart of NATS is shorter.
func (w *Worker) noteAway(ctx context.Context, end func()) {
	tick := time.NewTicker(awayLook)
	defer tick.Stop()
	for last := time.Now(); time.Since(last) < lease(); {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if w.deps.Bus.Connected() {
			last = time.Now()
		}
	}
	w.deps.Log.Warn("waiting no longer for the models to be ready elsewhere: NATS is away, and the lease has ended")
	end()
}
