package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// dynamic is Triton's dynamic batcher: requests join by priority and arrival, up to max_batch_size, and wait for
// others for at most the queue delay. A batch that has a preferred size goes before its delay is over.
type dynamic struct {
	model     *model
	maxSize   int64
	preferred []int64 // ascending, at least one
	delay     time.Duration
	likeness
	late []*Item
}

// likeness is what the requests of a batch must have in common.
type likeness struct {
	variable []string // inputs whose shapes must be equal, padded where they may be
	optional bool     // the sets of inputs must be equal
	padding  *modelconfig.Padding
}

func newLikeness(c *modelconfig.Config) (l likeness) {
	l.padding = c.Padding
	for i := range c.Inputs {
		in := &c.Inputs[i]
		l.optional = l.optional || in.Optional
		if !in.Dims.Fixed() && !in.Ragged {
			l.variable = append(l.variable, in.Name)
		}
	}
	return l
}

func newDynamic(m *model, c *modelconfig.Config) *dynamic {
	d := &dynamic{
		model:     m,
		maxSize:   maxSize(c),
		preferred: c.Batching.PreferredSizes,
		delay:     time.Duration(c.Batching.MaxQueueDelayMicros) * time.Microsecond,
		likeness:  newLikeness(c),
	}
	if len(d.preferred) == 0 {
		d.preferred = []int64{d.maxSize}
	}
	return d
}

// maxSize is how large a batch may be. A request to a model without a
// batch dimension is a batch by itself, under the same queue policies.
func maxSize(c *modelconfig.Config) int64 { return max(c.MaxBatchSize, 1) }

// candidate is a batch formed from the front of the queue.
type candidate struct {
	part
	cut   part // up to the last preferred size; empty if none is met
	bytes int64
	shape shape
	// full says that no later item could join, or that the batch has reached the largest preferred size. short says
	// that the first item needs more memory than is free.
	full, short bool
	oldest      mono.Time
	// tightest is the earliest deadline, of an item that arrived at since; 0 is none.
	tightest, since mono.Time
	// behind is when the first of the items moves behind the others; 0 is never.
	behind mono.Time
}

// part is a prefix of a batch's items.
type part struct {
	items int
	size  int64
}

// Propose offers the front of the queue once it is full, has a preferred size or has waited for long enough.
func (d *dynamic) Propose(now mono.Time) Proposal {
	head := d.model.queue.first(now)
	if head == nil {
		return Proposal{}
	}
	in, short := d.model.free(head.Bytes)
	switch {
	case short:
		return Proposal{Reason: WaitMemory, Size: head.BatchSize}
	case in == nil:
		return d.pipeline(now, head)
	}
	d.late = d.late[:0]
	e := d.candidate(now, in, true)
	takes := in.takes(e.size, e.shape)
	p := Proposal{Prefer: in, Size: e.size, Urgency: startFor(e.tightest, takes), Late: d.late}
	switch due := e.due(d.delay, takes); {
	case e.short:
		p.Reason = WaitMemory
	case e.items == 0:
	case e.full || e.cut.items > 0 || now >= due:
		p.Ready = true
	default:
		p.Wait = mono.Earliest(due, e.behind)
	}
	return p
}

// pipeline offers a batch to an instance that is about to be free, if the batch is short and no other batch could be
// formed from the requests that arrive until then.
func (d *dynamic) pipeline(now mono.Time, head *Item) Proposal {
	in := d.model.soonFree(now, head.Bytes)
	if in == nil {
		return Proposal{}
	}
	e := d.candidate(now, in, false)
	next := d.next(now, &e, in)
	if !e.full || next.items == 0 {
		return Proposal{}
	}
	takes := in.costs.estimate(next.size, e.shape)
	w := d.model.queue.walk(now)
	for range next.items {
		if !w.next().mayPipeline(now, in, takes) {
			return Proposal{}
		}
	}
	return Proposal{Ready: true, Prefer: in, Size: next.size, Urgency: startFor(e.tightest, takes)}
}

// Commit removes the items of the next batch from the queue.
func (d *dynamic) Commit(now mono.Time, in *instance, b *Batch) {
	e := d.candidate(now, in, false)
	n, w := d.next(now, &e, in).items, d.model.queue.walk(now)
	for range n {
		it := w.next()
		d.model.queue.remove(it)
		b.add(it)
	}
}

// next returns the part of a candidate that goes: a batch of a preferred size goes without further items, unless the
// oldest item has waited for a whole delay; then all go.
func (d *dynamic) next(now mono.Time, e *candidate, in *instance) part {
	if e.cut.items > 0 && (d.delay == 0 || now < e.due(d.delay, in.takes(e.size, e.shape))) {
		return e.cut
	}
	return e.part
}

// due returns until when a candidate that is not full waits for others: for the queue delay of its oldest item, and
// for no more than half of the slack that its tightest deadline leaves. The other half covers what no estimate knows,
// such as a late wake-up.
func (e *candidate) due(delay, takes time.Duration) mono.Time {
	due := e.oldest.Add(delay)
	if e.tightest != 0 {
		due = min(due, e.since.Add(max(e.tightest.Sub(e.since)-takes, 0)/2))
	}
	return due
}

// candidate returns the front of the queue, as far as its items join the batch of the first one. With drop, it
// removes items from the queue that could not be done in time even alone, or that are shed.
func (d *dynamic) candidate(now mono.Time, in *instance, drop bool) candidate {
	start := d.model.onTime(now)
	drop = drop && in.free()
	e := d.walk(now, start, in, drop)
	if drop && e.items > 0 && e.tightest != 0 && d.shed(now, start, in, &e) {
		return d.walk(now, start, in, drop)
	}
	return e
}

// shed drops the first items of the queue if they keep not only their own batch small but the next one too. Otherwise
// a queue that fell behind once would continue in small batches, at a fraction of the instances' throughput. This is
// the early drop of Nexus (Shen et al., SOSP 2019), except that a small batch goes if the next one can be large
// again: it is small in order to keep its first item.
func (d *dynamic) shed(now, start mono.Time, in *instance, e *candidate) bool {
	head := d.model.queue.first(now)
	size := min(head.flow.levels[head.level].waiting[head.shape.index].size, d.maxSize)
	if size <= e.size || !d.slower(in, e, size) || !d.holdsUp(now, start, in, e, size) {
		return false
	}
	end, kept, before := start.Add(in.takes(size, e.shape)), int64(0), len(d.late)
	flow, w := head.flow, d.model.queue.walk(now)
	for it := w.next(); it != nil && it.flow == flow && it.level == head.level && kept < size; it = w.next() {
		if it.doneBy(end) {
			kept += it.BatchSize
			continue
		}
		d.model.queue.remove(it)
		d.late = append(d.late, it)
	}
	return len(d.late) > before
}

// slower reports whether a candidate takes longer per row than a batch of the given size, by a tenth or more: the
// estimates are not more exact than that.
func (d *dynamic) slower(in *instance, e *candidate, size int64) bool {
	takes, larger := in.costs.mean(e.size, e.shape).Seconds()+in.way, in.costs.mean(size, e.shape).Seconds()+in.way
	return takes*float64(size) >= 1.1*larger*float64(e.size)
}

// holdsUp reports whether the items behind a candidate could not be done in time in a batch of the given size that
// follows it.
func (d *dynamic) holdsUp(now, start mono.Time, in *instance, e *candidate, size int64) bool {
	w, skip := d.model.queue.walk(now), e.items
	it := w.next()
	level, rows, tightest := it.level, int64(0), mono.Time(0)
	for ; it != nil && it.level == level && rows < size; it = w.next() {
		if skip > 0 {
			skip--
			continue
		}
		rows += it.BatchSize
		tightest = mono.Earliest(tightest, it.Deadline)
	}
	slack := in.takes(size, e.shape) // covers what the estimates do not know
	end := start.Add(in.takes(e.size, e.shape) + in.takes(min(rows, size), e.shape) + slack)
	return tightest != 0 && end > tightest
}

// walk forms the candidate. With drop, hopeless items leave the queue.
func (d *dynamic) walk(now, start mono.Time, in *instance, drop bool) (e candidate) {
	q := d.model.queue
	var head *Item
	w := q.walk(now)
	for it := w.next(); it != nil; it = w.next() {
		if drop && it.hopeless(start, in) {
			q.remove(it)
			d.late = append(d.late, it)
			continue
		}
		if head == nil {
			head, e.oldest = it, it.Enqueued
		}
		if !d.joins(&e, head, it, start, in) {
			break
		}
		d.extend(&e, it, now)
	}
	e.full = e.full || e.size >= d.preferred[len(d.preferred)-1]
	return e
}

// hopeless reports whether an item that starts at start could not be done in time even alone.
func (it *Item) hopeless(start mono.Time, in *instance) bool {
	return it.Deadline != 0 && !it.doneBy(start.Add(in.takes(it.BatchSize, it.shape)))
}

// joins reports whether an item joins a candidate. It does as long as size, shapes and memory allow and all items
// would be done in time; deadlines do not count if the instance is not free, because the batch is then pipelined.
func (d *dynamic) joins(e *candidate, head, it *Item, start mono.Time, in *instance) bool {
	free, size := in.free(), e.size+it.BatchSize
	tightest := mono.Earliest(e.tightest, it.Deadline)
	switch {
	case it != head && (size > d.maxSize || !d.alike(head.Request, it.Request)):
		e.full = true
	case it != head && free && tightest != 0 && start.Add(in.takes(size, e.shape.larger(it.shape))) > tightest:
		e.full = true
	case it == head && free && it.hopeless(start, in):
		e.full = true
	case !in.fits(e.bytes, it.Bytes):
		e.full, e.short = free, it == head
	default:
		return true
	}
	return false
}

// extend adds an item to a candidate.
func (d *dynamic) extend(e *candidate, it *Item, now mono.Time) {
	if e.size+it.BatchSize > d.preferred[len(d.preferred)-1] && e.cut.items == 0 {
		e.cut = e.part
	}
	if it.Deadline != 0 && (e.tightest == 0 || it.Deadline < e.tightest) {
		e.tightest, e.since = it.Deadline, it.Enqueued
	}
	e.shape = e.shape.larger(it.shape)
	e.size += it.BatchSize
	e.bytes += it.Bytes
	e.items++
	e.oldest = min(e.oldest, it.Enqueued)
	if it.behindAt > now {
		e.behind = mono.Earliest(e.behind, it.behindAt)
	}
	if _, met := slices.BinarySearch(d.preferred, e.size); met {
		e.cut = e.part
	}
}

// Backlog assumes full batches: of the maximum size or, if every batch goes as soon as it has a preferred size, of
// the largest preferred size.
func (d *dynamic) Backlog(it *Item, t tally, own bool) (batches, size, joined int64) {
	size = d.maxSize
	if d.delay == 0 {
		size = d.preferred[len(d.preferred)-1]
	}
	if !own {
		return (t.size + size - 1) / size, size, 0
	}
	return t.size / size, size, min(t.size%size+it.BatchSize, d.maxSize)
}

// alike reports whether two requests may share a batch.
func (l *likeness) alike(a, b *infer.Request) bool {
	if l.optional && (len(a.Inputs) != len(b.Inputs) || !sameInputs(a, b)) {
		return false
	}
	for _, name := range l.variable {
		if !l.padding.Alike(name, rowShape(a, name), rowShape(b, name)) {
			return false
		}
	}
	return true
}

// rowShape returns an input's shape without the batch dimension, or nil if the request does not have the input.
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
