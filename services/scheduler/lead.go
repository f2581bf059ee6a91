package scheduler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Streams are the connections of gateways and workers in other processes: [schedule.Server]. They are served while
// the scheduler leads its pool.
type Streams interface {
	// Serve accepts streams from now on, under the pool's epoch.
	Serve(epoch uint64, b schedule.Backend)
	// Drain asks the gateways to send no new requests.
	Drain()
	// Stop ends all streams and accepts no more.
	Stop()
	// Placed tells a gateway which worker runs its request.
	Placed(w infer.Work, worker uint64)
	// Left tells a worker that it is forgotten and may exit.
	Left(worker uint64)
}

// noStreams is for a scheduler that is called from its own process.
type noStreams struct{}

func (noStreams) Serve(uint64, schedule.Backend) {}
func (noStreams) Drain()                         {}
func (noStreams) Stop()                          {}
func (noStreams) Placed(infer.Work, uint64)      {}
func (noStreams) Left(uint64)                    {}

// retry is how long to wait after a leadership that could not start.
const retry = time.Second

// claim is one attempt to lead the pool; it also signals that the leadership is over.
type claim struct {
	*bus.Registration[*nereidv1.LeaderValue]
	epoch  atomic.Uint64 // 0 until this scheduler leads
	other  atomic.Pointer[string]
	lost   chan struct{} // closed when another scheduler leads the pool
	once   sync.Once
	holder string
	before uint64 // epoch of the previous leadership
}

// mayReplace allows taking over what is left of an earlier run of this scheduler. If another scheduler holds the key,
// the leadership ends: the lease was lost in the meantime. While the store is unavailable nobody can have acquired
// the lease, so the leadership continues.
func (c *claim) mayReplace(present *nereidv1.LeaderValue) bool {
	own := max(c.epoch.Load(), c.before)
	if present.GetHolder() == c.holder && (own == 0 || present.GetEpoch() <= own) {
		return true
	}
	if c.epoch.Load() != 0 {
		c.depose("the pool is held by " + present.GetHolder())
	}
	return false
}

// depose ends the leadership.
func (c *claim) depose(why string) {
	c.once.Do(func() {
		c.other.Store(&why)
		close(c.lost)
	})
}

// lead waits for the leadership of the pool, serves the pool while it leads, and starts over, until ctx is done.
func (s *Scheduler) lead(ctx context.Context) error {
	leaders, err := bus.NewBucket(s.deps.Bus, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		return err
	}
	select {
	case <-s.known: // a request for a model that is not known yet would be refused
	case <-ctx.Done():
	}
	for ctx.Err() == nil {
		if err := s.term(ctx, leaders); err != nil && ctx.Err() == nil {
			s.deps.Log.Warn("term as the pool's scheduler ended", obs.Err(err)...)
			lifecycle.Pause(ctx, retry)
		}
	}
	return nil
}

// term is one leadership of the pool.
func (s *Scheduler) term(ctx context.Context, leaders *bus.Bucket[*nereidv1.LeaderValue]) error {
	role := control.PoolRole(s.config.Pool)
	if present, err := leaders.Get(ctx, role); err == nil && present.Value.GetHolder() != s.config.ID {
		s.deps.Log.Info("standing by", zap.String("pool", s.config.Pool), zap.String("holder", present.Value.GetHolder()))
	}
	c := &claim{lost: make(chan struct{}), holder: s.config.ID, before: s.last}
	var err error
	c.Registration, err = leaders.Register(ctx, bus.Claim[*nereidv1.LeaderValue]{
		Key: role,
		Value: func(epoch uint64) *nereidv1.LeaderValue {
			return &nereidv1.LeaderValue{
				Schema: nereidv1.Schema, Holder: s.config.ID, Epoch: epoch, Address: s.config.Address, RateLimit: s.rateLimit(),
			}
		},
		Replace: c.mayReplace,
	})
	if err != nil {
		return err
	}
	s.last = c.Epoch()
	c.epoch.Store(s.last)
	held, release := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan error, 1)
	go func() { kept <- c.Run(held) }() // ends below
	s.serve(ctx, c)
	release()
	err = <-kept
	s.costs.flush(ctx) // only now: the next scheduler does not wait for it
	return err
}

// rateLimit tells the registry what it must refuse; nil is nothing.
func (s *Scheduler) rateLimit() *nereidv1.RateLimit {
	if s.limits.RateLimit == nil {
		return nil
	}
	return &nereidv1.RateLimit{Resources: s.limits.RateLimit.Counts.Texts()}
}

// serve leads until ctx is done, and then hands the pool over, or until another scheduler leads.
func (s *Scheduler) serve(ctx context.Context, c *claim) {
	epoch := c.Epoch()
	log := s.deps.Log.With(zap.String("pool", s.config.Pool), zap.Uint64("epoch", epoch))
	leading, end := context.WithCancel(ctx)
	defer end()
	go func() { // ends below
		select {
		case <-c.lost:
			end()
		case <-leading.Done():
		}
	}()
	history, err := s.attached.inherit(leading, epoch)
	if err != nil {
		if leading.Err() == nil {
			log.Warn("scheduler does not begin to serve its pool", obs.Err(err)...)
			c.depose(err.Error())
		}
		return
	}
	s.leases.refresh(leading)
	var kept sync.WaitGroup // ends below
	kept.Go(func() {
		if err := s.attached.keep(leading); err != nil {
			c.depose(err.Error())
		}
	})
	kept.Go(func() { s.costs.keep(leading) })
	s.claim.Store(c)
	s.metrics.began(epoch)
	s.loop.BecomeLeader(epoch, history, s.config.TakeoverWait)
	s.deps.Streams.Serve(epoch, s)
	log.Info("scheduler serves its pool", zap.Int("workers", len(history.Workers)))
	select {
	case <-c.lost:
		log.Warn("scheduler was deposed: its requests go back to their gateways", zap.String("cause", *c.other.Load()))
	case <-ctx.Done():
		log.Info("scheduler hands its pool over")
		s.deps.Streams.Drain()
	}
	s.claim.Store(nil)
	s.metrics.began(0)
	s.loop.StepDown()
	s.deps.Streams.Stop()
	end()
	kept.Wait()
}

// Leads reports whether the scheduler leads its pool, and under which epoch.
func (s *Scheduler) Leads() (epoch uint64, ok bool) {
	if c := s.claim.Load(); c != nil {
		return c.Epoch(), true
	}
	return 0, false
}

// depose ends the leadership: another scheduler has led since it started.
func (s *Scheduler) depose(why string) {
	if c := s.claim.Load(); c != nil {
		c.depose(why)
	}
}

// errStandby is the error for calls that only the pool's leader can answer.
func (s *Scheduler) errStandby() error {
	return errs.New(errs.StateUnavailable, "scheduler %s does not hold the pool %s", s.config.ID, s.config.Pool)
}
