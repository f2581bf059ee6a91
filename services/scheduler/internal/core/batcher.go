package core

import (
	"math"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// batcher is Triton's dynamic batcher: requests join by priority and arrival,
// up to max_batch_size rows, and wait for company for at most the queue delay.
// Preferred sizes are points at which a batch goes before its delay is over.
type batcher struct {
	queue
	maxRows   int64
	preferred []int64 // ascending, at least one
	delay     time.Duration
	variable  []string // inputs whose shapes must be equal within a batch
	optional  bool     // the sets of inputs must be equal
}

func newBatcher(c *modelconfig.Config) *batcher {
	b := &batcher{
		queue:     newQueue(c.Batching),
		maxRows:   maxRows(c),
		preferred: c.Batching.PreferredSizes,
		delay:     time.Duration(c.Batching.MaxQueueDelayMicros) * time.Microsecond,
	}
	if len(b.preferred) == 0 {
		b.preferred = []int64{b.maxRows}
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

// maxRows is how many rows a batch may have. A request to a model without a
// batch dimension is a batch by itself, under the same queue policies.
func maxRows(c *modelconfig.Config) int64 { return max(c.MaxBatchSize, 1) }

func (p *batcher) Add(it *Item) errs.Reason { return p.push(it) }
func (p *batcher) Remove(it *Item)          { p.remove(it) }
func (p *batcher) Last() *Item              { return p.last() }
func (p *batcher) Len() int                 { return p.n }
func (p *batcher) Oldest() mono.Time        { return p.queue.oldest() }

func (p *batcher) Form(now mono.Time, b *Batch, c *costs) mono.Time {
	for {
		e := p.extent(now)
		if e.items == 0 {
			return 0
		}
		next, due := p.goes(now, &e, c)
		switch {
		case p.dropLate(now, b, c.estimate(next.rows), next.items):
		case e.full || now >= due:
			p.take(now, b, next.items)
			return 0
		default:
			return due
		}
	}
}

// goes returns which part of an extent makes the next batch, and when it goes if
// that is not full. A batch of a preferred size goes at once, and takes no more
// than that, unless the oldest has waited out a delay: then all go.
func (p *batcher) goes(now mono.Time, e *extent, c *costs) (next part, due mono.Time) {
	due = min(e.oldest.Add(p.delay), e.latestStart(c))
	if e.marked.items > 0 && (now < due || p.delay == 0) {
		return e.marked, now
	}
	return e.part, due
}

func (p *batcher) FormAhead(now, begin mono.Time, b *Batch, c *costs) {
	e := p.extent(now)
	next, _ := p.goes(now, &e, c)
	takes, known := c.brief(next.rows)
	if !e.full || !known {
		return
	}
	it := p.first(now)
	for range next.items {
		if !it.mayGoAhead(begin.Add(takes)) {
			return
		}
		it = p.next(now, it)
	}
	p.take(now, b, next.items)
}

// dropLate moves those of the next n items into b's late ones that would not
// be done by their deadline in a batch that takes so long.
func (p *batcher) dropLate(now mono.Time, b *Batch, takes time.Duration, n int) bool {
	end, dropped := now.Add(takes), false
	for it := p.first(now); it != nil && n > 0; n-- {
		next := p.next(now, it)
		if !it.doneBy(end) {
			p.remove(it)
			b.late = append(b.late, it)
			dropped = true
		}
		it = next
	}
	return dropped
}

// Ahead takes batches for full: of as many rows as fit or, where every batch
// goes with a preferred size, of the largest one.
func (p *batcher) Ahead(it *Item) (batches, size, rows int64) {
	size = p.maxRows
	if p.delay == 0 {
		size = p.preferred[len(p.preferred)-1]
	}
	before := p.rowsBefore(it)
	return before / size, size, min(before%size+it.Rows, p.maxRows)
}

// take moves the first n items into b.
func (p *batcher) take(now mono.Time, b *Batch, n int) {
	for range n {
		it := p.first(now)
		p.remove(it)
		b.add(it)
	}
}

// part is the beginning of the queue, as a batch.
type part struct {
	items int
	rows  int64
}

// extent is how far a batch could reach into the queue.
type extent struct {
	part
	marked part // up to the last preferred size; empty if none is met
	full   bool
	oldest mono.Time
	// tightest is the earliest deadline; 0 is none.
	tightest mono.Time
}

// latestStart is when a batch of this extent must start for the tightest
// deadline.
func (e *extent) latestStart(c *costs) mono.Time {
	if e.tightest == 0 {
		return math.MaxInt64
	}
	return e.tightest.Add(-c.estimate(e.rows))
}

// extent walks the queue as far as items join the batch of the first. The
// batch is full if it cannot grow by later arrivals or has reached the largest
// preferred size.
func (p *batcher) extent(now mono.Time) extent {
	var e extent
	largest := p.preferred[len(p.preferred)-1]
	head := p.first(now)
	for it := head; it != nil; it = p.next(now, it) {
		if it != head && (e.rows+it.Rows > p.maxRows || !p.alike(head.Request, it.Request)) {
			e.full = true
			break
		}
		if e.rows+it.Rows > largest && e.marked.items == 0 {
			e.marked = e.part
		}
		e.rows += it.Rows
		e.items++
		e.tightest = mono.Earliest(e.tightest, it.Deadline)
		if e.oldest == 0 || it.Enqueued < e.oldest {
			e.oldest = it.Enqueued
		}
		if _, met := slices.BinarySearch(p.preferred, e.rows); met {
			e.marked = e.part
		}
	}
	e.full = e.full || e.rows >= largest
	return e
}

// alike reports whether two requests may share a batch.
func (p *batcher) alike(a, b *infer.Request) bool {
	if p.optional && (len(a.Inputs) != len(b.Inputs) || !sameInputs(a, b)) {
		return false
	}
	for _, name := range p.variable {
		if !slices.Equal(rowShape(a, name), rowShape(b, name)) {
			return false
		}
	}
	return true
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
