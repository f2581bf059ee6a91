package core

import (
	"cmp"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// maxShapes is how many shapes a model's costs tell apart.
const maxShapes = 16

// shape says how large the rows of a request are: the binary logarithm of their
// elements, and its index among the model's shapes. The zero shape is that of a
// model whose rows are all of one size.
type shape struct{ log2, index uint8 }

func (s shape) larger(t shape) shape {
	if t.log2 > s.log2 {
		return t
	}
	return s
}

// shapes are the sizes of rows that a model has met, as logarithms.
type shapes []uint8

// rowElements is how many elements a row of a request has, padded as the model
// has it.
func (m *model) rowElements(r *infer.Request) (elements uint64) {
	for i := range r.Inputs {
		dims, n := r.Inputs[i].Shape, uint64(1)
		if m.batched && len(dims) > 0 {
			dims = dims[1:]
		}
		for dim, d := range dims {
			n *= uint64(max(m.config.Padding.Size(r.Inputs[i].Name, dim, d), 0))
		}
		elements += n
	}
	return elements
}

// of returns the shape of a request whose rows have so many elements, nearest to
// one known before where there are too many.
func (s *shapes) of(elements uint64) shape {
	log2, nearest := uint8(bits.Len64(elements)), 0
	for i, known := range *s {
		if known == log2 {
			return shape{log2, uint8(i)}
		}
		if distance(known, log2) < distance((*s)[nearest], log2) {
			nearest = i
		}
	}
	if len(*s) == maxShapes {
		return shape{(*s)[nearest], uint8(nearest)}
	}
	*s = append(*s, log2)
	return shape{log2, uint8(len(*s) - 1)}
}

func distance(a, b uint8) uint8 { return max(a, b) - min(a, b) }

// withMagnitude is the shape of rows whose number of elements has so many bits.
func (m *model) withMagnitude(bits uint8) shape {
	if !m.variable || bits == 0 {
		return shape{}
	}
	return m.shapes.of(1 << (min(bits, 64) - 1))
}

// learned takes in what executions took before, by kind of device. What is known from
// executions stays as it is.
func (c *Core) learned(ref infer.ModelRef, list []infer.Cost) {
	m := c.models[ref]
	if m == nil || m.batcher == nil {
		return
	}
	by := make(map[*estimator][]infer.Cost)
	for _, known := range list {
		if e := m.costsOn(known.Device).at(m.withMagnitude(known.Magnitude)); e.line.n == 0 || e.warmed {
			by[e] = append(by[e], known)
		}
	}
	for e, known := range by {
		*e = estimator{}
		e.recall(known)
	}
}

// warm takes in what executions took that warmed an instance up, where nothing is known.
func (in *instance) warm(list []infer.Cost) {
	for _, known := range list {
		e := in.costs.at(in.model.withMagnitude(known.Magnitude))
		if e.line.n == 0 || e.warmed {
			e.warmed = true
			e.recall([]infer.Cost{known})
		}
		in.started = true
	}
}

// kept is how many batch sizes of a shape are worth keeping.
const kept = 32

// Costs returns what the executions of a model have taken, and how many there were; of a
// model that is not known it is nothing.
func (c *Core) Costs(ref infer.ModelRef) (list []infer.Cost, executions int) {
	m := c.models[ref]
	if m == nil {
		return nil, 0
	}
	for _, kind := range slices.Sorted(maps.Keys(m.costs)) {
		for i := range m.costs[kind].by {
			e := &m.costs[kind].by[i]
			executions += e.line.n
			for _, known := range e.known(kept) {
				known.Device = kind
				if m.variable {
					known.Magnitude = m.shapes[i]
				}
				list = append(list, known)
			}
		}
	}
	return list, executions
}

// costs is what a model's executions have taken on one kind of device, or on a worker that is
// slower than its kind, by shape and batch size.
type costs struct{ by []estimator }

// learn takes in one execution.
func (c *costs) learn(size int64, s shape, took time.Duration) {
	c.at(s).learn(size, took)
}

// at returns the estimator of a shape.
func (c *costs) at(s shape) *estimator {
	if missing := int(s.index) + 1 - len(c.by); missing > 0 {
		c.by = append(c.by, make([]estimator, missing)...)
	}
	return &c.by[s.index]
}

// of returns mean and deviation of a batch of that size, in seconds; 0 if
// nothing of its shape has run.
func (c *costs) of(size int64, s shape) (mean, dev float64) {
	if int(s.index) >= len(c.by) {
		return 0, 0
	}
	return c.by[s.index].of(size)
}

// estimate is how long a batch of that size will hardly exceed.
func (c *costs) estimate(size int64, s shape) time.Duration {
	mean, dev := c.of(size, s)
	return seconds(mean + 2*dev)
}

// mean is how long a batch of that size takes as a rule.
func (c *costs) mean(size int64, s shape) time.Duration {
	mean, _ := c.of(size, s)
	return seconds(mean)
}

// estimator is what executions of one shape have taken, by batch size.
// Estimates are upper ones, mean plus twice the mean deviation, as they answer
// whether a deadline will be met. Without a single execution they are 0:
// nothing is refused before something is known.
//
// Mean and deviation are exponentially weighted, as in TCP's round-trip
// estimator (Jacobson, SIGCOMM 1988); the deviation is a share of the mean, and one
// for all sizes. A batch size that has been seen too seldom is estimated by a line
// through all sizes, fitted by least squares with exponential forgetting. So is one
// that has not run for long: that its estimate is high may be why.
type estimator struct {
	cells []cell // by size, from 1
	line  line
	dev   float64 // as a share of the mean
	long  bool    // the last execution was much longer than estimated
	// warmed says that it knows executions alone that warmed an instance up, which are
	// often longer than others: the first of those replaces them.
	warmed bool
}

// cell is one batch size.
type cell struct {
	n    int
	mean float64 // in seconds
	last int     // the number of its last execution among all
}

const (
	// trusted is how many executions of one size make its own estimate, and aged
	// how many of other sizes after its last one do not count against it; after
	// twice as many it counts for nothing.
	trusted, aged = 8, 64
	// slowest is the gain of the means once they have settled.
	slowest = 1.0 / 16
	// sizes bounds the batch sizes with an estimate of their own.
	sizes = 1024
)

// learn takes in one execution. One that takes half as long again as its estimate,
// or longer, counts as that, unless the one before was such, too: that a machine
// stood still for a moment says nothing of the next execution.
func (e *estimator) learn(size int64, took time.Duration) {
	if took <= 0 || size < 1 {
		return
	}
	if e.warmed {
		*e = estimator{}
	}
	t := took.Seconds()
	if e.line.n > 0 {
		mean, dev := e.of(size)
		most := 1.5 * (mean + 2*dev)
		before := e.long
		if e.long = t > most && e.share(size) > 0; e.long && !before {
			t = most
		}
		e.dev += slowest * (min(abs(t-mean)/mean, 1) - e.dev)
	}
	e.line.add(float64(size), t)
	if size > sizes {
		return
	}
	if missing := int(size) - len(e.cells); missing > 0 {
		e.cells = append(e.cells, make([]cell, missing)...)
	}
	c := &e.cells[size-1]
	c.n++
	c.last = e.line.n
	c.mean += max(1/float64(c.n), slowest) * (t - c.mean)
}

// of returns the mean and deviation of a size, in seconds.
func (e *estimator) of(size int64) (mean, dev float64) {
	share := e.share(size)
	if share < 1 {
		mean = (1 - share) * max(e.line.at(float64(size)), 0)
	}
	if share > 0 {
		mean += share * e.cells[size-1].mean
	}
	return mean, mean * e.dev
}

// share is how much of a size's estimate is its own, the rest being the line's.
func (e *estimator) share(size int64) float64 {
	if size < 1 || size > int64(len(e.cells)) || e.cells[size-1].n < trusted {
		return 0
	}
	return min(max(2-float64(e.line.n-e.cells[size-1].last)/aged, 0), 1)
}

// known returns what executions took, by size: of the sizes that have run most, at most
// so many.
func (e *estimator) known(most int) (list []infer.Cost) {
	if e.warmed {
		return nil
	}
	for i, c := range e.cells {
		if c.n > 0 {
			list = append(list, infer.Cost{BatchSize: int64(i) + 1, Executions: uint32(min(c.n, math.MaxInt32)), Mean: seconds(c.mean), Deviation: e.dev}) //nolint:gosec // bounded
		}
	}
	slices.SortStableFunc(list, func(a, b infer.Cost) int { return cmp.Compare(b.Executions, a.Executions) })
	return list[:min(len(list), most)]
}

// recall takes in what executions took that were before.
func (e *estimator) recall(list []infer.Cost) {
	for _, known := range list {
		size, mean := known.BatchSize, known.Mean.Seconds()
		if size < 1 || size > sizes || mean <= 0 {
			continue
		}
		if missing := int(size) - len(e.cells); missing > 0 {
			e.cells = append(e.cells, make([]cell, missing)...)
		}
		n := int(min(max(known.Executions, 1), trusted)) // or they could hardly be corrected
		e.cells[size-1] = cell{n: n, mean: mean}
		for range n {
			e.line.add(float64(size), mean)
		}
		e.dev = min(max(e.dev, known.Deviation), 1)
	}
	for i := range e.cells {
		e.cells[i].last = e.line.n // none is older than the others
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// line is t = a + b·size, fitted to weighted sums.
type line struct {
	n               int
	w, x, t, xx, xt float64
}

// forget is how much an execution weighs less with each later one.
const forget = 0.98

func (l *line) add(x, t float64) {
	l.n++
	l.w = l.w*forget + 1
	l.x = l.x*forget + x
	l.t = l.t*forget + t
	l.xx = l.xx*forget + x*x
	l.xt = l.xt*forget + x*t
}

// at is the line's value: the mean where all executions had one size, and
// never less than the line's value at size 1, since larger batches do not take
// less time.
func (l *line) at(x float64) float64 {
	if l.n == 0 {
		return 0
	}
	spread := l.w*l.xx - l.x*l.x
	if spread < 1e-9*l.w*l.xx {
		return l.t / l.w
	}
	slope := max((l.w*l.xt-l.x*l.t)/spread, 0)
	return (l.t-slope*l.x)/l.w + slope*x
}

func abs(x float64) float64 {
	if x < 0 {
		return -x
	}
	return x
}
