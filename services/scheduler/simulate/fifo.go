package simulate

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// fifo serves in the order of arrival: batches take the next requests until they are full, and wait for others as the
// configuration says. It ignores deadlines, timeouts and sequences, and late requests run all the same. It refuses
// requests beyond the limits, and does not run canceled ones.
type fifo struct {
	*engine
	models  []line
	due     mono.Time // the earliest of the models'; 0 is none
	waiting int
	bytes   int64
	running int
	decided int
}

// line is the queue of a model, and the instances that it runs on.
type line struct {
	config    *modelconfig.Config // nil until it is known
	size      int64               // of a full batch
	delay     time.Duration
	waits     []int32
	head      int // of waits
	levels    []int
	instances []*instance
	due       mono.Time // when a batch goes even if it is not full; 0 is none
}

func newFIFO(e *engine) *fifo { return &fifo{engine: e, models: make([]line, len(e.Models))} }

func (f *fifo) change(e *core.Event) {
	switch e.Kind {
	case core.Configure:
		f.configure(&f.models[f.modelOf(e.Model.Ref)], e.Model.Config)
	case core.Granted:
		in := f.instances[e.Grant.Instance]
		f.models[in.model].instances = append(f.models[in.model].instances, in)
	case core.Retire:
		f.without(func(in *instance) bool { return in.id == e.Instance })
	case core.WorkerLost:
		f.lose(e.Instance.Worker)
	default:
	}
	for m := range f.models {
		f.pump(m)
	}
}

func (f *fifo) configure(l *line, c *modelconfig.Config) {
	l.config, l.size = c, 1
	if b := c.Batching; b != nil {
		l.size = max(c.MaxBatchSize, 1)
		if n := len(b.PreferredSizes); n > 0 {
			l.size = b.PreferredSizes[n-1]
		}
		l.delay = time.Duration(b.MaxQueueDelayMicros) * time.Microsecond
	}
	l.levels = make([]int, levels(c))
}

// levels returns how many priority levels a configuration has.
func levels(c *modelconfig.Config) int {
	if c.Batching == nil {
		return 1
	}
	return int(max(c.Batching.PriorityLevels, 1))
}

// lose fails what runs on a worker's instances.
func (f *fifo) lose(worker uint64) {
	for _, b := range f.lostOn(worker) {
		f.running--
		for _, i := range b.units {
			f.end(i, failed, errs.InstanceCrashed)
		}
	}
	f.without(func(in *instance) bool { return in.lost })
}

// lostOn returns the batches on a lost worker whose end has not been reported.
func (e *engine) lostOn(worker uint64) (lost []*batch) {
	for _, b := range e.running {
		if b.instance.id.Worker == worker {
			lost = append(lost, b)
			lost = append(lost, b.instance.waits...)
			b.instance.waits = nil
		}
	}
	return lost
}

func (f *fifo) without(gone func(*instance) bool) {
	for m := range f.models {
		f.models[m].instances = slices.DeleteFunc(f.models[m].instances, gone)
	}
}

func (f *fifo) arrive(i int32) {
	a := &f.Arrivals[i]
	l := &f.models[a.Model]
	level, reason := 0, errs.ModelNotReady
	if l.config != nil {
		level = levelOf(l.config, a.Priority)
		reason = f.bound(l, level, a)
	}
	if reason != "" {
		f.end(i, refused, reason)
		f.decided++
		return
	}
	l.levels[level]++
	f.waiting++
	f.bytes += a.Bytes
	l.waits = append(l.waits, i)
	f.pump(int(a.Model))
}

// bound returns the reason to refuse a request because a limit is reached.
func (f *fifo) bound(l *line, level int, a *Arrival) errs.Reason {
	if b := l.config.Batching; b != nil {
		policy, ok := b.Policies[uint64(level)+1]
		if !ok {
			policy = b.DefaultPolicy
		}
		if limit := int(policy.MaxQueueSize); limit > 0 && l.levels[level] >= limit {
			return errs.MaxQueueSize
		}
	}
	if f.Limits.MaxRequests > 0 && f.waiting >= f.Limits.MaxRequests ||
		f.Limits.MaxBytes > 0 && f.waiting > 0 && f.bytes+a.Bytes > f.Limits.MaxBytes {
		return errs.QueueFull
	}
	return ""
}

// levelOf returns the index of a request's priority level.
func levelOf(c *modelconfig.Config, priority uint64) int {
	switch {
	case c.Batching == nil:
		return 0
	case priority >= 1 && priority <= c.Batching.PriorityLevels:
		return int(priority) - 1
	case c.Batching.DefaultPriority > 0:
		return int(c.Batching.DefaultPriority) - 1
	}
	return 0
}

func (f *fifo) cancel(int32) {} // takes effect when its turn comes

func (f *fifo) free(b *batch) {
	f.running--
	f.decided++
	f.pump(int(b.instance.model))
}

func (f *fifo) tick() {
	for m := range f.models {
		if due := f.models[m].due; due != 0 && due <= f.now {
			f.pump(m)
		}
	}
}

func (f *fifo) next() mono.Time { return f.due }
func (f *fifo) idle() bool      { return f.running == 0 && f.waiting == 0 }
func (f *fifo) decisions() int  { return f.decided }

// pump sends batches as long as there are instances for them.
func (f *fifo) pump(m int) {
	l := &f.models[m]
	due := mono.Time(0)
	for due == 0 {
		f.dropCanceled(l)
		if l.head == len(l.waits) {
			break
		}
		n, full := f.candidate(l)
		in := l.next(full)
		if in == nil {
			break
		}
		if until := f.Arrivals[l.waits[l.head]].At.Add(l.delay); !full && f.now < until {
			due = until
			continue
		}
		b := f.newBatch()
		b.instance = in
		for range n {
			b.units = append(b.units, f.take(l))
		}
		f.running++
		f.decided++
		f.dispatch(b)
	}
	if due == l.due {
		return
	}
	l.due, f.due = due, 0
	for i := range f.models {
		f.due = mono.Earliest(f.due, f.models[i].due)
	}
}

// next returns the instance for the next batch: one that has none or, for a full batch, one that accepts it in
// addition to its others.
func (l *line) next(full bool) (best *instance) {
	for _, in := range l.instances {
		if (in.under == 0 || full && in.under <= in.ahead) && (best == nil || in.under < best.under) {
			best = in
		}
	}
	return best
}

// dropCanceled removes canceled requests from the front of the queue.
func (f *fifo) dropCanceled(l *line) {
	for l.head < len(l.waits) {
		if at := f.Arrivals[l.waits[l.head]].Canceled; at == 0 || at > f.now {
			return
		}
		f.end(f.take(l), refused, errs.Canceled)
		f.decided++
	}
}

// take removes the first request.
func (f *fifo) take(l *line) int32 {
	i := l.waits[l.head]
	l.head++
	if l.head > 1024 && l.head > len(l.waits)/2 {
		l.waits = append(l.waits[:0], l.waits[l.head:]...)
		l.head = 0
	}
	a := &f.Arrivals[i]
	l.levels[levelOf(l.config, a.Priority)]--
	f.waiting--
	f.bytes -= a.Bytes
	return i
}

// candidate returns how many requests go together. full says that no more could.
func (f *fifo) candidate(l *line) (n int, full bool) {
	first, size := &f.Arrivals[l.waits[l.head]], int64(0)
	limit := max(l.config.MaxBatchSize, 1)
	if l.config.Batching == nil {
		limit = 0
	}
	for _, i := range l.waits[l.head:] {
		a := &f.Arrivals[i]
		switch {
		case n == 0:
		case size+a.BatchSize > limit, !alike(l.config, first.Inputs, a.Inputs):
			return n, true
		}
		n++
		if size += a.BatchSize; size >= l.size {
			return n, true
		}
	}
	return n, false
}

// alike reports whether requests may share a batch.
func alike(c *modelconfig.Config, a, b []infer.Tensor) bool {
	for i := range c.Inputs {
		in := &c.Inputs[i]
		one, other := input(a, in.Name), input(b, in.Name)
		switch {
		case one == nil || other == nil:
			if one != other {
				return false
			}
		case in.Ragged || in.Dims.Fixed() || len(one.Shape) == 0 || len(other.Shape) == 0:
		case !slices.Equal(one.Shape[1:], other.Shape[1:]):
			return false
		}
	}
	return true
}

func input(list []infer.Tensor, name string) *infer.Tensor {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
