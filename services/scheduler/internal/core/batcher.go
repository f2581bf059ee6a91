package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// batcher is the dynamic batcher: requests join in the order of their
// arrival, up to max_batch_size rows, and wait for company for at most the
// queue delay of the oldest.
type batcher struct {
	list
	maxRows  int64
	delay    time.Duration
	queue    modelconfig.QueuePolicy
	variable []string // inputs whose shapes must be equal within a batch
	optional bool     // the sets of inputs must be equal
}

func newBatcher(c *modelconfig.Config) *batcher {
	b := &batcher{
		maxRows: c.MaxBatchSize,
		delay:   time.Duration(c.Batching.MaxQueueDelayMicros) * time.Microsecond,
		queue:   c.Batching.DefaultPolicy,
	}
	for i := range c.Inputs {
		in := &c.Inputs[i]
		b.optional = b.optional || in.Optional
		if !in.Dims.Fixed() && !in.Ragged {
			b.variable = append(b.variable, in.Name)
		}
	}
	return b
}

func (p *batcher) Add(it *Item) errs.Reason {
	if limit := int(p.queue.MaxQueueSize); limit > 0 && p.n >= limit {
		return errs.MaxQueueSize
	}
	it.timeout = p.timeoutOf(it)
	p.push(it)
	return ""
}

// timeoutOf is when the queue policy gives the item up. A client's own
// timeout counts only where the policy allows it and has a longer one.
func (p *batcher) timeoutOf(it *Item) mono.Time {
	limit := time.Duration(p.queue.DefaultTimeoutMicros) * time.Microsecond
	if own := it.Request.Timeout; p.queue.AllowTimeoutOverride && own > 0 && own < limit {
		limit = own
	}
	if limit == 0 || p.queue.Delay {
		return 0
	}
	return it.Enqueued.Add(limit)
}

func (p *batcher) Remove(it *Item) { p.remove(it) }
func (p *batcher) Done(*Batch)     {}
func (p *batcher) Len() int        { return p.n }

func (p *batcher) Form(now mono.Time, b *Batch) mono.Time {
	first := p.head
	if first == nil {
		return 0
	}
	end, full := p.extent(first)
	if ready := first.Enqueued.Add(p.delay); !full && now < ready {
		return ready
	}
	for it := first; it != end; it = p.head {
		p.remove(it)
		b.add(it)
	}
	return 0
}

// extent returns the first item that does not join first's batch, or nil, and
// whether the batch can not grow by later arrivals.
func (p *batcher) extent(first *Item) (end *Item, full bool) {
	rows := first.Rows
	for it := first.next; it != nil; it = it.next {
		if rows+it.Rows > p.maxRows || !p.alike(first.Request, it.Request) {
			return it, true
		}
		rows += it.Rows
	}
	return nil, rows >= p.maxRows
}

// alike reports whether two requests may share a batch.
func (p *batcher) alike(a, b *infer.Request) bool {
	if p.optional && len(a.Inputs) != len(b.Inputs) {
		return false
	}
	for _, name := range p.variable {
		x, y := rowShape(a, name), rowShape(b, name)
		if !slices.Equal(x, y) {
			return false
		}
	}
	return !p.optional || sameInputs(a, b)
}

// rowShape is an input's shape without the batch dimension; nil if the
// request does not have the input.
func rowShape(r *infer.Request, name string) tensor.Shape {
	for i := range r.Inputs {
		if in := &r.Inputs[i]; in.Name == name && len(in.Shape) > 0 {
			return in.Shape[1:]
		}
	}
	return nil
}

func sameInputs(a, b *infer.Request) bool {
	for i := range a.Inputs {
		if !slices.ContainsFunc(b.Inputs, func(t infer.Tensor) bool { return t.Name == a.Inputs[i].Name }) {
			return false
		}
	}
	return true
}
