// Package dispatcher maintains a gateway's sessions with the schedulers that lead its pools, whichever
// processes these are. The [requests.Table] decides what happens to the requests.
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

// look is the interval of checks for requests that have waited too long.
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

// Deps are a Dispatcher's dependencies.
type Deps struct {
	Pool *requests.Pool
	// Finder finds the scheduler that leads the pool. The dispatcher runs it.
	Finder *control.Finder
	// Dial connects to a scheduler and returns when it accepts requests. It sends the scheduler met, the
	// highest epoch that the dispatcher has seen.
	Dial    func(ctx context.Context, address string, met uint64, h schedule.GatewayHandler) (Session, error)
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Dispatcher connects a gateway to the scheduler of one pool.
type Dispatcher struct {
	deps    Deps
	metrics metrics
	floor   uint64 // the highest epoch seen; owned by follow
}

// New makes a dispatcher. Its pool's requests wait until [Dispatcher.Run] has found a scheduler.
func New(deps Deps) *Dispatcher {
	return &Dispatcher{deps: deps, metrics: newMetrics(deps.Metrics, deps.Pool)}
}

// Run follows the pool's scheduler until ctx is done. Then the unanswered requests fail.
func (d *Dispatcher) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.deps.Finder.Run(ctx) })
	group.Go(func() error { return d.sweep(ctx) })
	group.Go(func() error { return d.follow(ctx) })
	return group.Wait()
}

// follow maintains a session with the scheduler that leads the pool.
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

// meet runs one session, until it or the holder's leadership ends. The end of the leadership also ends dialing,
// since a host that has vanished does not answer. The error says why the session could not start.
//
// A scheduler that lost its leadership to another one, which has since failed, may lead the pool again under
// its old epoch. It knows nothing of the other's requests and would run them twice. It gets no requests, but is
// told that it was replaced.
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

// begin resubmits unanswered requests on a new session.
func (d *Dispatcher) begin(ctx context.Context, session Session) {
	scheduler := session.Scheduler()
	d.floor = max(d.floor, scheduler.Epoch)
	d.metrics.epoch.Set(float64(scheduler.Epoch))
	again := d.deps.Pool.Begin(ctx, session, scheduler.Epoch)
	d.metrics.resubmissions.Add(float64(again))
	d.deps.Log.Info("connected to the pool's scheduler",
		zap.String("scheduler", scheduler.ID), zap.Uint64("epoch", scheduler.Epoch), zap.Int("resubmitted", again))
}

// end handles the end of a session.
func (d *Dispatcher) end(ctx context.Context, session Session) {
	d.deps.Pool.End()
	d.metrics.epoch.Set(0)
	level := zap.WarnLevel
	if ctx.Err() != nil || errs.Of(session.Err()) == errs.SchedulerDeposed { // the gateway or the scheduler is stopping
		level = zap.InfoLevel
	}
	d.deps.Log.Log(level, "the session with the scheduler has ended", append(obs.Err(session.Err()), zap.Int("waiting", d.deps.Pool.Waiting()))...)
}

// sweep ends requests that have waited too long, and when ctx is done all of them.
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
