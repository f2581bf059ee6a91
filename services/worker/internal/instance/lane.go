package instance

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// lane runs the batches of one instance, one after another, in a goroutine
// that ends when the queue is closed and empty, or in the caller's while nothing is
// before them and the instance is prompt. (An instance may go on with a
// batch after Execute has returned; no more of them run at a time than it says.)
type lane struct {
	executor *Executor
	id       infer.InstanceID
	spec     Spec
	prompt   backend.Prompt // nil if the instance is not
	credits  int            // for batches that run or wait here
	turns    chan struct{}  // one for each batch that has been taken up and has not ended
	queue    chan *batch
	work     sync.WaitGroup // the goroutine, and each batch until it has ended

	retireOnce sync.Once
	retired    chan struct{} // closed by the scheduler's answer

	paused map[uint32]paused // by slot: requests that are to run again; guarded by executor.mu

	taken int // batches queued or running, whose instance is not free; guarded by executor.mu

	away atomic.Bool // its instance is
}

func newLane(e *Executor, id infer.InstanceID, spec Spec) *lane {
	atOnce := max(spec.Instance.Credits(), 1)
	credits := atOnce + e.deps.Pipelined
	l := &lane{
		executor: e, id: id, spec: spec, credits: credits,
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
			Credits: credits, Pipelined: l.executor.deps.Pipelined,
		})
	}
}

// watch takes in how the instance is. What meets the withdrawal of the credits of one
// that is away is given back.
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
		l.take(b, false)
	}
}

// take runs a batch, unless it is too late for it or nobody waits. It holds nobody up
// if that is to be at once.
func (l *lane) take(b *batch, atOnce bool) {
	now := l.executor.deps.Clock.Now()
	b.timing.Start = now
	limit := b.of.LatestStart
	switch {
	case !l.executor.deps.Fresh(b.accepted):
		l.executor.giveBack(b, errs.New(errs.PeerUnreachable, "the worker stood still before it could start the batch"))
	case l.away.Load():
		l.executor.giveBack(b, errs.New(errs.InstanceAway, "instance %s is away: its process is started again", l.spec.Name).WithModel(l.spec.Model.Name))
	case limit != 0 && now > limit:
		err := errs.New(errs.DeadlineQueue, "the batch reached its instance %v after the latest time at which it could have met its deadline", now.Sub(limit)).
			WithModel(l.spec.Model.Name)
		b.reject(infer.Rejected, err)
	case b.abandoned():
		b.reject(infer.Canceled, errs.New(errs.Canceled, ""))
	default:
		l.executor.deps.Batches.Start(b.of.ID)
		b.entry = l.executor.deps.Log.Begin(b.of, l.spec.Model)
		if !atOnce {
			l.execute(b)
		} else if !l.call(b, l.prompt.TryExecute) {
			l.work.Go(func() { l.execute(b) })
		}
	}
}

func (l *lane) execute(b *batch) {
	l.call(b, func(b backend.Batch) bool {
		l.spec.Instance.Execute(b)
		return true
	})
}

// call calls the backend. The batch is the backend's until its Done, which may come
// later, unless it does not take it; if it panics before, the batch ends here.
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

// close waits for the lane's last batch and closes the instance. Its queue
// has been closed.
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
