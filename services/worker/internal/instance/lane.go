package instance

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// lane runs the batches of one instance, one after another. They run in a goroutine that ends when the queue is
// closed and empty, or in the caller's goroutine if no other batch is ahead and the instance is prompt. (An instance
// may continue a batch after Execute has returned, but no more of them run at a time than it allows.) If the instance
// pipelines, the caller passes it batches that start once the earlier ones have ended.
type lane struct {
	executor *Executor
	id       infer.InstanceID
	spec     Spec
	prompt   backend.Prompt // nil if the instance is not prompt
	credits  int            // for batches that run or wait
	ahead    int            // how many of them the instance may have before their turns
	turns    chan struct{}  // one for each batch that has started and not ended
	queue    chan *batch
	work     sync.WaitGroup // the goroutine, and each batch until it has ended

	retireOnce sync.Once
	retired    chan struct{} // closed by the scheduler's answer

	paused map[uint32]paused // by slot: requests that will run again; guarded by executor.mu

	// Guarded by executor.mu.
	taken   int      // batches queued, passed on or running whose instance is not free
	queued  int      // of these, how many are in the queue
	passing int      // of these, how many the instance has yet to accept
	next    []*batch // those that were passed on before their turn

	away atomic.Bool // its instance is away
}

func newLane(e *Executor, id infer.InstanceID, spec Spec) *lane {
	ahead := 0
	if p, ok := spec.Instance.(backend.Pipelining); ok {
		ahead = p.Pipelined()
	}
	atOnce := max(spec.Instance.Credits(), 1)
	credits := atOnce + max(e.deps.Pipelined, ahead)
	l := &lane{
		executor: e, id: id, spec: spec, credits: credits, ahead: ahead,
		turns:   make(chan struct{}, atOnce),
		queue:   make(chan *batch, credits),
		retired: make(chan struct{}),
	}
	l.prompt, _ = spec.Instance.(backend.Prompt)
	l.work.Add(1)
	return l
}

func (l *lane) retire() { l.retireOnce.Do(func() { close(l.retired) }) }

// offer grants credits of the lane to the scheduler, or withdraws them.
func (l *lane) offer(credits int) {
	if !l.spec.Passive {
		l.executor.deps.Scheduler.Grant(infer.Grant{
			Instance: l.id, Model: l.spec.Model, Name: l.spec.Name, Device: l.spec.Device,
			Credits: credits, Pipelined: l.credits - cap(l.turns), Warmed: l.spec.Warmed,
		})
	}
}

// watch records the condition of the instance. Batches that arrive after the credits of an unavailable instance were
// withdrawn are returned to the scheduler.
func (l *lane) watch(c backend.Condition) {
	away := c.Away != nil
	if l.away.Swap(away) != away {
		credits := l.credits
		if away {
			credits = -credits
		}
		l.offer(credits)
	}
	if l.spec.Unready != nil {
		l.spec.Unready(l.id, c.Cause())
	}
}

func (l *lane) run() {
	defer l.work.Done()
	for b := range l.queue {
		l.turns <- struct{}{}
		l.executor.unqueue(l)
		if now := l.executor.deps.Clock.Now(); l.admit(b, now) {
			b.start(now)
			l.execute(b)
		}
	}
}

// pass passes a batch on, at its turn or before it, without blocking the caller.
func (l *lane) pass(b *batch, early bool) {
	now := l.executor.deps.Clock.Now()
	if l.admit(b, now) {
		if !early {
			b.start(now)
		}
		if !l.call(b, l.prompt.TryExecute) {
			l.work.Go(func() {
				l.execute(b)
				l.executor.passed(l)
			})
			return
		}
	}
	l.executor.passed(l)
}

// admit reports whether to run a batch: if it is too late, or nobody waits for it, admit ends it.
func (l *lane) admit(b *batch, now mono.Time) bool {
	switch limit := b.of.LatestStart; {
	case !l.executor.deps.Fresh(b.accepted):
		l.executor.giveBack(b, errs.New(errs.PeerUnreachable, "the worker stood still before it could start the batch"))
		b.release()
	case l.away.Load():
		l.executor.giveBack(b, errs.New(errs.InstanceAway, "instance %s is away: its process is started again", l.spec.Name).WithModel(l.spec.Model.Name))
		b.release()
	case limit != 0 && now > limit:
		b.reject(infer.Rejected, errs.New(errs.DeadlineQueue, "the batch reached its instance %v after the latest time at which it could have met its deadline", now.Sub(limit)).
			WithModel(l.spec.Model.Name), now)
	case b.abandoned():
		b.reject(infer.Canceled, errs.New(errs.Canceled, ""), now)
	default:
		l.executor.deps.Batches.Start(b.of.ID)
		return true
	}
	return false
}

// start records that the instance starts the batch, unless the batch has ended.
func (b *batch) start(now mono.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return
	}
	b.entry = b.lane.executor.deps.Log.Begin(b.of, b.lane.spec.Model)
	if b.timing.Start = now; b.timing.InputDone != 0 {
		b.timing.InputDone = now // it was passed on with its inputs
	}
}

// leaveLocked records that a batch is over, or that its instance is free of it. It returns the passed-on batch whose
// turn it is now, with one more use. The caller holds executor.mu.
func (l *lane) leaveLocked(b *batch) (next *batch) {
	l.taken--
	if i := slices.Index(l.next, b); i >= 0 {
		l.next = slices.Delete(l.next, i, i+1)
		return nil
	}
	if len(l.next) == 0 {
		<-l.turns
		return nil
	}
	next = l.next[0]
	l.next = slices.Delete(l.next, 0, 1)
	next.users.Add(1)
	return next
}

func (l *lane) execute(b *batch) {
	l.call(b, func(b backend.Batch) bool {
		l.spec.Instance.Execute(b)
		return true
	})
}

// call calls the backend. If the backend accepts the batch, it owns it until Done, which may come later. If the
// backend panics before that, call ends the batch.
func (l *lane) call(b *batch, backend func(backend.Batch) bool) (taken bool) {
	defer func() {
		if v := recover(); v != nil {
			taken = true
			b.broken.Store(true) // a goroutine of the backend may still use it
			b.Done()
			l.executor.deps.Panicked(Panic{
				Instance: l.id, Name: l.spec.Name, Model: l.spec.Model, Value: v, Stack: debug.Stack(),
			})
		}
		if taken {
			b.release()
		}
	}()
	return backend(b)
}

// close waits for the lane's last batch and closes the instance. The lane's queue must be closed already.
func (l *lane) close(ctx context.Context) error {
	late, free := backend.WithGrace(ctx)
	defer free()
	ended := make(chan struct{})
	go func() {
		l.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		l.executor.abandon(l)
		if !backend.Await(late, l.spec.Instance, ended) {
			return fmt.Errorf("close instance %s: a batch still runs %v after it was canceled: the instance is left as it is", l.spec.Name, backend.StopGrace)
		}
	}
	if err := backend.Close(late, l.spec.Instance); err != nil {
		return fmt.Errorf("close instance %s: %w", l.spec.Name, err)
	}
	return nil
}
