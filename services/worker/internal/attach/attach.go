package attach

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

// Session is one stream to a scheduler: [schedule.WorkerSession].
type Session interface {
	Grant(infer.Grant)
	Retire(infer.InstanceID)
	InstanceFree(*infer.InstanceFree)
	UnitDone(infer.UnitDone)
	// Return gives a batch back, and gives up the references of its requests.
	Return(*infer.Batch, error)
	// Leave says that the worker has ended. Left is closed when the scheduler has
	// forgotten it.
	Leave()
	Left() <-chan struct{}
	Close()
	// Done is closed when the session has ended. The executor is not called
	// any more then.
	Done() <-chan struct{}
	Err() error
	Scheduler() schedule.Scheduler
}

var _ Session = (*schedule.WorkerSession)(nil)

// Dial opens a session for the worker of the incarnation, which says what it
// holds. Batches may come to the executor before it returns.
type Dial func(ctx context.Context, address string, worker uint64, held infer.Held, e infer.Executor) (Session, error)

// Deps are what an Attachment works with.
type Deps struct {
	// Finder knows the scheduler that holds the pool. The attachment runs it.
	Finder *control.Finder
	Dial   Dial
	Clock  mono.Clock
	// Lease is for how long the worker counts as alive without a sign.
	Lease time.Duration
	// Batches is the worker's table.
	Batches *batches.Table
	// Fetch brings the inputs of a request to where they can be read, and calls
	// done once, at once or later; cancel has that be soon, with the error.
	Fetch func(r *infer.Request, done func(error)) (cancel func(error))
	// Respond answers requests that never reach an instance.
	Respond func(*infer.Response)
	Log     *zap.Logger
}

// Attachment is the [infer.Scheduler] of a worker whose schedulers come and go.
// It is safe for concurrent use.
type Attachment struct {
	deps  Deps
	pulse *Pulse
	came  chan struct{} // closed with the first Attach
	left  chan struct{} // closed when a scheduler has forgotten the worker

	mu       sync.Mutex
	worker   uint64         // guarded by mu
	memory   int64          // that its batches may have; guarded by mu
	executor infer.Executor // guarded by mu
	session  Session        // nil while there is none; guarded by mu
	leaves   bool           // the worker has ended, which each session is told; guarded by mu
}

// New makes an attachment that does nothing before the worker attaches and
// [Attachment.Run].
func New(deps Deps) *Attachment {
	return &Attachment{deps: deps, pulse: NewPulse(deps.Clock, deps.Lease), came: make(chan struct{}), left: make(chan struct{})}
}

// Fresh reports whether a batch that came at the given time may still start.
func (a *Attachment) Fresh(accepted mono.Time) bool { return a.pulse.Fresh(accepted) }

// Abandon cancels what runs of the requests of a gateway that is gone, by its
// incarnation.
func (a *Attachment) Abandon(gateway uint64) {
	for _, u := range a.deps.Batches.Of(gateway) {
		a.present().Cancel(u.Batch, u.Request)
	}
}

// Run attaches the worker to whoever holds its pool, until ctx is done.
func (a *Attachment) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.deps.Finder.Run(ctx) })
	group.Go(func() error { return a.pulse.Run(ctx, a.stoodStill) })
	group.Go(func() error { return a.follow(ctx) })
	return group.Wait()
}

// stoodStill parts with a scheduler that may have given the worker up.
func (a *Attachment) stoodStill(pause time.Duration) {
	a.deps.Log.Warn("the worker stood still: it attaches anew, and starts no batch from before", zap.Duration("pause", pause))
	a.mu.Lock()
	session := a.session
	a.mu.Unlock()
	if session != nil {
		session.Close()
	}
}

func (a *Attachment) follow(ctx context.Context) error {
	select {
	case <-a.came:
	case <-ctx.Done():
		return nil
	}
	a.deps.Finder.Follow(ctx, func(leadership context.Context, holder control.Holder) error {
		err := a.meet(ctx, leadership, holder)
		if err != nil && ctx.Err() == nil {
			a.deps.Log.Debug("the scheduler cannot be reached", append(obs.Err(err), zap.String("scheduler", holder.ID))...)
		}
		return err
	})
	return nil
}

// meet is one session, until it ends or the holder's leadership does, which ends the
// dialing, too: a vanished host answers nothing. The error says why it could
// not begin.
func (a *Attachment) meet(ctx, leadership context.Context, holder control.Holder) error {
	held, ok := a.deps.Batches.Hello(holder.Epoch)
	if !ok {
		return errs.New(errs.NoWorker, "the worker has ended")
	}
	a.mu.Lock()
	held.Memory = a.memory
	a.mu.Unlock()
	session, err := a.deps.Dial(leadership, holder.Address, a.worker, held, (*receiver)(a))
	if err != nil {
		return err
	}
	epoch := session.Scheduler().Epoch
	if a.begin(session, epoch) {
		a.deps.Log.Info("attached to the pool's scheduler", zap.String("scheduler", holder.ID), zap.Uint64("epoch", epoch),
			zap.Int("running", len(held.Running)))
		select {
		case <-session.Done():
		case <-leadership.Done():
		case <-session.Left():
			a.forgotten()
		}
	}
	session.Close()
	<-session.Done()
	a.end(ctx, session)
	return nil
}

// begin makes a session the present one and tells it what comes first. The lock
// is held meanwhile, so that nothing overtakes that.
func (a *Attachment) begin(session Session, epoch uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	grants, reports, ok := a.deps.Batches.Connect(epoch)
	if !ok {
		return false
	}
	a.session = session
	for _, g := range grants {
		session.Grant(g)
	}
	for _, r := range reports {
		switch {
		case r.Free != nil:
			session.InstanceFree(r.Free)
		case r.Done != nil:
			session.UnitDone(*r.Done)
		default:
			session.Close()
		}
	}
	if a.leaves {
		session.Leave()
	}
	return true
}

// forgotten ends the table, so that no other session begins.
func (a *Attachment) forgotten() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deps.Batches.Close()
	close(a.left)
}

// end parts with a session. Instances that retire have done so. It is no warning that
// the session of a worker or a scheduler ends which stops.
func (a *Attachment) end(ctx context.Context, session Session) {
	a.mu.Lock()
	a.session = nil
	retired, executor := a.deps.Batches.Disconnect(), a.executor
	a.mu.Unlock()
	closed, open := a.deps.Batches.Closed()
	level := zap.WarnLevel
	if closed || ctx.Err() != nil || errs.Of(session.Err()) == errs.SchedulerDeposed {
		level = zap.InfoLevel
	}
	for _, id := range retired {
		executor.Retired(id)
	}
	a.deps.Log.Log(level, "the session with the scheduler has ended", append(obs.Err(session.Err()), zap.Int("running", open))...)
}
