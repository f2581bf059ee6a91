// Package dispatcher keeps a gateway's sessions with the schedulers that hold its
// pools, whichever processes these are by now. What becomes of the requests it
// leaves to the [requests.Table].
package dispatcher

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// look is how often it is seen to what has waited too long.
const look = 100 * time.Millisecond

// Session is one connection to a scheduler: [schedule.GatewaySession].
type Session interface {
	requests.Session
	Close()
	Err() error
	Scheduler() schedule.Scheduler
}

var (
	_ Session                 = (*schedule.GatewaySession)(nil)
	_ schedule.GatewayHandler = (*requests.Pool)(nil)
)

// Deps are what a Dispatcher works with.
type Deps struct {
	Pool *requests.Pool
	// Finder knows the scheduler that holds the pool. The dispatcher runs it.
	Finder *control.Finder
	// Dial connects to a scheduler, which it tells the highest epoch that the
	// dispatcher has met, and returns when it takes requests.
	Dial    func(ctx context.Context, address string, met uint64, h schedule.GatewayHandler) (Session, error)
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Dispatcher is a gateway's way to the scheduler of one pool.
type Dispatcher struct {
	deps    Deps
	metrics metrics
	floor   uint64 // the highest epoch met; owned by follow
}

// New makes a dispatcher. Its pool's requests wait until [Dispatcher.Run] has found
// a scheduler.
func New(deps Deps) *Dispatcher {
	return &Dispatcher{deps: deps, metrics: newMetrics(deps.Metrics, deps.Pool)}
}

// Run follows the pool's scheduler until ctx is done. Then requests that have no
// answer fail.
func (d *Dispatcher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.deps.Finder.Run(ctx) })
	group.Go(func() error { return d.sweep(ctx) })
	group.Go(func() error { return d.follow(ctx) })
	return group.Wait()
}

// follow keeps a session with whoever holds the pool.
func (d *Dispatcher) follow(ctx context.Context) error {
	d.deps.Finder.Follow(ctx, func(leadership context.Context, holder control.Holder) error {
		err := d.meet(ctx, leadership, holder)
		if err != nil && ctx.Err() == nil {
			d.deps.Log.Debug("the scheduler cannot be reached", append(obs.Err(err), zap.String("scheduler", holder.ID))...)
		}
		return err
	})
	return nil
}

// meet is one session, until it ends or the holder's leadership does, which ends the
// dialing, too: a vanished host answers nothing. The error says why it could
// not begin.
//
// A scheduler that was away while another led, and has died, may hold the pool
// again under its old epoch: it knows nothing of what the other had, and would
// have it run twice. It gets no requests, but the word that it was replaced.
func (d *Dispatcher) meet(ctx, leadership context.Context, holder control.Holder) error {
	d.floor = max(d.floor, holder.Epoch)
	d.deps.Pool.Expect()
	session, err := d.deps.Dial(leadership, holder.Address, d.floor, d.deps.Pool)
	if err != nil {
		return err
	}
	if epoch := session.Scheduler().Epoch; epoch < d.floor {
		session.Close()
		<-session.Done()
		return errs.New(errs.PeerUnreachable, "the scheduler of epoch %d has been replaced by that of epoch %d", epoch, d.floor)
	}
	d.begin(leadership, session)
	select {
	case <-session.Done():
	case <-leadership.Done():
	}
	session.Close()
	<-session.Done()
	d.end(ctx, session)
	return nil
}

// begin submits on a new session what has no answer.
func (d *Dispatcher) begin(ctx context.Context, session Session) {
	scheduler := session.Scheduler()
	d.floor = max(d.floor, scheduler.Epoch)
	d.metrics.epoch.Set(float64(scheduler.Epoch))
	again := d.deps.Pool.Begin(ctx, session, scheduler.Epoch)
	d.metrics.resubmissions.Add(float64(again))
	d.deps.Log.Info("connected to the pool's scheduler",
		zap.String("scheduler", scheduler.ID), zap.Uint64("epoch", scheduler.Epoch), zap.Int("resubmitted", again))
}

// end parts with a session.
func (d *Dispatcher) end(ctx context.Context, session Session) {
	d.deps.Pool.End()
	d.metrics.epoch.Set(0)
	level := zap.WarnLevel
	if ctx.Err() != nil || errs.Of(session.Err()) == errs.SchedulerDeposed { // the gateway stops, or the scheduler does
		level = zap.InfoLevel
	}
	d.deps.Log.Log(level, "the session with the scheduler has ended", append(obs.Err(session.Err()), zap.Int("waiting", d.deps.Pool.Waiting()))...)
}

// sweep ends what has waited too long, and at last everything.
func (d *Dispatcher) sweep(ctx context.Context) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.deps.Pool.EndOverdue(false)
		case <-ctx.Done():
			d.deps.Pool.EndOverdue(true)
			return nil
		}
	}
}
