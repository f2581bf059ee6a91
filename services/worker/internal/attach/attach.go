package attach

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/remote/leader"
	"github.com/nereid-serving/nereid/libs/remote/schedule"
)

// Session is one stream to a scheduler: [schedule.WorkerSession].
type Session interface {
	Grant(infer.Grant)
	Retire(infer.InstanceID)
	Complete(*infer.Completion)
	// Refuse gives an order back, and gives up the references of its requests.
	Refuse(*infer.Order, error)
	Close()
	// Done is closed when the session has ended. The executor is not called
	// any more then.
	Done() <-chan struct{}
	Err() error
	Scheduler() schedule.Scheduler
}

var _ Session = (*schedule.WorkerSession)(nil)

// Dial opens a session for the worker of the incarnation, which says what it
// holds. Orders may come to the executor before it returns.
type Dial func(ctx context.Context, address string, worker uint64, held infer.Held, e infer.Executor) (Session, error)

// Deps are what an Attachment works with.
type Deps struct {
	// Finder knows the scheduler that holds the pool. The attachment runs it.
	Finder *leader.Finder
	Dial   Dial
	Clock  mono.Clock
	// Lease is for how long the worker counts as alive without a sign.
	Lease time.Duration
	Log   *zap.Logger
}

// Attachment is the [infer.Scheduler] of a worker whose schedulers come and go.
// It is safe for concurrent use.
type Attachment struct {
	deps  Deps
	pulse *Pulse

	mu        sync.Mutex
	worker    uint64 // guarded by mu
	executor  infer.Executor
	came      chan struct{} // closed with the first Attach
	attached  bool          // guarded by mu
	instances map[infer.InstanceID]*instance
	open      map[key]*order // guarded by mu
	begun     infer.Recent   // requests of orders that are over; guarded by mu
	floor     uint64         // the highest epoch met; guarded by mu
	life      uint64         // counts the sessions; guarded by mu
	session   Session        // nil while there is none; guarded by mu
	detached  bool           // the worker has ended; guarded by mu
	// late is what became of the orders that a hello named before its session
	// began; guarded by mu.
	late []func(Session)
}

// key names an order among those of all schedulers.
type key struct{ epoch, id uint64 }

// order is one that has come and is not over.
type order struct {
	infer.Running
	came uint64 // the session on which it came
	life uint64 // the last that knows of it: that on which it came, or whose hello named it
}

// instance is one that has been granted and not retired.
type instance struct {
	grant    infer.Grant
	retiring bool
}

// New makes an attachment that does nothing before the worker attaches and
// [Attachment.Run].
func New(deps Deps) *Attachment {
	return &Attachment{
		deps: deps, pulse: NewPulse(deps.Clock, deps.Lease), came: make(chan struct{}),
		instances: make(map[infer.InstanceID]*instance), open: make(map[key]*order),
	}
}

// Fresh reports whether an order that came at the given time may still be begun.
func (a *Attachment) Fresh(accepted mono.Time) bool { return a.pulse.Fresh(accepted) }

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
	a.deps.Log.Warn("the worker stood still: it attaches anew, and begins no order from before", zap.Duration("pause", pause))
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
	a.deps.Finder.Follow(ctx, func(tenure context.Context, holder leader.Holder) error {
		err := a.meet(ctx, tenure, holder)
		if err != nil && ctx.Err() == nil {
			a.deps.Log.Debug("the scheduler cannot be reached", append(obs.Err(err), zap.String("scheduler", holder.ID))...)
		}
		return err
	})
	return nil
}

// meet is one session, until it ends or the holder's tenure does, which ends the
// dialling, too: a vanished host answers nothing. The error says why it could
// not begin.
func (a *Attachment) meet(ctx, tenure context.Context, holder leader.Holder) error {
	held, life, ok := a.hold(holder.Epoch)
	if !ok {
		return errs.New(errs.NoWorker, "the worker has ended")
	}
	session, err := a.deps.Dial(tenure, holder.Address, a.worker, held, &receiver{a, life})
	if err != nil {
		return err
	}
	epoch := session.Scheduler().Epoch
	if a.begin(session, epoch) {
		a.deps.Log.Info("attached to the pool's scheduler", zap.String("scheduler", holder.ID), zap.Uint64("epoch", epoch),
			zap.Int("running", len(held.Running)))
		select {
		case <-session.Done():
		case <-tenure.Done():
		}
	}
	session.Close()
	<-session.Done()
	a.end(ctx, session)
	return nil
}

// hold raises the floor and says what the worker holds, all at once. One that
// holds the pool under an epoch below the floor, since it was away while another
// did, hears of it by the hello, and begins anew. It reports false if the worker
// has ended.
func (a *Attachment) hold(epoch uint64) (held infer.Held, life uint64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.detached {
		return held, 0, false
	}
	a.floor = max(a.floor, epoch)
	a.life++
	a.late = nil
	held = infer.Held{Epoch: a.floor, Begun: a.begun.Begun()}
	for _, o := range a.open {
		o.life = a.life
		held.Running = append(held.Running, o.Running)
	}
	slices.SortFunc(held.Running, func(x, y infer.Running) int {
		return cmp.Or(cmp.Compare(x.Epoch, y.Epoch), cmp.Compare(x.Order, y.Order))
	})
	return held, a.life, true
}

// begin makes a session the present one and grants on it what is free. Retiring
// instances are not granted; there is nothing to wait for.
func (a *Attachment) begin(session Session, epoch uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if epoch < a.floor || a.detached {
		return false
	}
	a.floor, a.session = epoch, session
	busy := make(map[infer.InstanceID]int)
	for _, o := range a.open {
		busy[o.Instance]++
	}
	for id, in := range a.instances {
		if !in.retiring {
			g := in.grant
			g.Credits -= busy[id]
			session.Grant(g) // does not block
		}
	}
	for _, tell := range a.late {
		tell(session)
	}
	a.late = nil
	return true
}

// end parts with a session. Instances that retire have done so: no order comes
// for them any more. That a worker which stops has no session is no warning.
func (a *Attachment) end(ctx context.Context, session Session) {
	a.mu.Lock()
	a.session = nil
	var retired []infer.InstanceID
	for id, in := range a.instances {
		if in.retiring {
			retired = append(retired, id)
			delete(a.instances, id)
		}
	}
	executor := a.executor
	open, level := len(a.open), zap.WarnLevel
	if a.detached || ctx.Err() != nil {
		level = zap.InfoLevel
	}
	a.mu.Unlock()
	for _, id := range retired {
		executor.Retired(id)
	}
	a.deps.Log.Log(level, "the session with the scheduler has ended", append(obs.Err(session.Err()), zap.Int("running", open))...)
}
