package dispatch

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Queues returns the waiting and running requests by model, version and generation; nil before Run.
func (l *Loop) Queues() []infer.Queue {
	queues := l.queues()
	now := l.clock.Now()
	list := make([]infer.Queue, 0, len(queues))
	for ref, q := range queues {
		one := infer.Queue{Model: ref, Waiting: q.Waiting, Running: q.Running}
		if q.Oldest != 0 {
			one.Oldest = max(now.Sub(q.Oldest), 0)
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b infer.Queue) int { return a.Model.Compare(b.Model) })
	return list
}

// Load returns how many requests wait and run in the pool; zero before Run.
func (l *Loop) Load() core.Load { return look(l, (*core.Core).Load) }

// Costs returns how long the executions of a model have taken, and how many there were; nothing before Run.
func (l *Loop) Costs(ref infer.ModelRef) (list []infer.Cost, executions int) {
	l.Between(func(c *core.Core) { list, executions = c.Costs(ref) })
	return list, executions
}

func (l *Loop) queues() map[infer.ModelRef]core.Queue { return look(l, (*core.Core).Queues) }

// look queries the core between two events. The answer is zero before Run.
func look[T any](l *Loop, ask func(*core.Core) T) (answer T) {
	l.Between(func(c *core.Core) { answer = ask(c) })
	return answer
}

// Between calls f between two events and waits for it to return. Before Run it returns without calling f, since
// nobody works on the inbox.
func (l *Loop) Between(f func(*core.Core)) {
	l.mu.Lock()
	running := l.running
	l.mu.Unlock()
	if !running {
		return
	}
	done := make(chan struct{})
	l.post(message{look: func(c *core.Core) { f(c); close(done) }})
	<-done
}
