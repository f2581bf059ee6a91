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

// maxShapes is how many shapes a model's costs distinguish.
const maxShapes = 16

// shape is the size class of a request's rows: the binary logarithm of their number of elements, and its index among
// the model's shapes. A model whose rows all have one size uses the zero shape.
type shape struct{ log2, index uint8 }

func (s shape) larger(t shape) shape {
	if t.log2 > s.log2 {
		return t
	}
	return s
}

// shapes are the row sizes that a model has seen, as logarithms.
type shapes []uint8

// rowElements returns how many elements a row of a request has, with the model's padding.
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

// of returns the shape of a request whose rows have the given number of elements. Once there are maxShapes shapes, it
// returns the nearest known one.
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

// withMagnitude returns the shape of rows whose number of elements has the given number of bits.
func (m *model) withMagnitude(bits uint8) shape {
	if !m.variable || bits == 0 {
		return shape{}
	}
	return m.shapes.of(1 << (min(bits, 64) - 1))
}

// learned records how long earlier executions took, by kind of device. It leaves alone what is known from executions.
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

// warm records how long an instance's warmup executions took, where nothing else is known.
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

// kept is how many batch sizes of a shape are worth storing.
const kept = 32

// Costs returns how long the executions of a model have taken, and how many there were. It returns nothing for an
// unknown model.
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

// costs is how long a model's executions have taken on one kind of device, or on a worker that is slower than its
// kind, by shape and batch size.
type costs struct{ by []estimator }

// learn records one execution.
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

// of returns the mean and deviation of a batch of that size, in seconds; 0 if nothing of its shape has run.
func (c *costs) of(size int64, s shape) (mean, dev float64) {
	if int(s.index) >= len(c.by) {
		return 0, 0
	}
	return c.by[s.index].of(size)
}

// estimate returns the time that a batch of that size is unlikely to exceed.
func (c *costs) estimate(size int64, s shape) time.Duration {
	mean, dev := c.of(size, s)
	return seconds(mean + 2*dev)
}

// mean returns how long a batch of that size takes on average.
func (c *costs) mean(size int64, s shape) time.Duration {
	mean, _ := c.of(size, s)
	return seconds(mean)
}

// estimator is how long executions of one shape have taken, by batch size. Estimates are upper ones, the mean plus
// twice the mean deviation, as they answer whether a deadline will be met. Before the first execution they are 0:
// nothing is refused until something is known.
//
// Mean and deviation are exponentially weighted, as in TCP's round-trip estimator (Jacobson, SIGCOMM 1988); the
// deviation is a fraction of the mean, and the same for all sizes. A batch size that has been seen too rarely is
// estimated by a line through all sizes, fitted by least squares with exponential forgetting. So is a size that has
// not run for long: it may not have run because its estimate is too high.
type estimator struct {
	cells []cell // by size, from 1
	line  line
	dev   float64 // as a fraction of the mean
	long  bool    // the last execution was much longer than estimated
	// warmed says that only warmup executions are known. They often take longer than others, so the first regular
	// execution replaces them.
	warmed bool
}

// cell is one batch size.
type cell struct {
	n    int
	mean float64 // in seconds
	last int     // the number of its last execution, counted over all sizes
}

const (
	// trusted is how many executions a size needs for an estimate of its own. aged is how many executions of other
	// sizes may follow its last one before its own estimate loses weight; after twice as many it has none.
	trusted, aged = 8, 64
	// slowest is the gain of the means once they have settled.
	slowest = 1.0 / 16
	// sizes is the largest batch size with an estimate of its own.
	sizes = 1024
)

// learn records one execution. One that takes more than one and a half times its estimate counts as one and a half
// times, unless the one before was as long: a momentary stall of the machine says nothing about the next execution.
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

// share is the weight of a size's own mean in its estimate; the rest is the line's.
func (e *estimator) share(size int64) float64 {
	if size < 1 || size > int64(len(e.cells)) || e.cells[size-1].n < trusted {
		return 0
	}
	return min(max(2-float64(e.line.n-e.cells[size-1].last)/aged, 0), 1)
}

// known returns how long executions took, by size: at most the given number of sizes, those that have run most.
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

// recall records how long earlier executions took.
func (e *estimator) recall(list []infer.Cost) {
	for _, known := range list {
		size, mean := known.BatchSize, known.Mean.Seconds()
		if size < 1 || size > sizes || mean <= 0 {
			continue
		}
		if missing := int(size) - len(e.cells); missing > 0 {
			e.cells = append(e.cells, make([]cell, missing)...)
		}
		n := int(min(max(known.Executions, 1), trusted)) // more would be hard to correct
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

// forget is the factor by which each later execution reduces an execution's weight.
const forget = 0.98

func (l *line) add(x, t float64) {
	l.n++
	l.w = l.w*forget + 1
	l.x = l.x*forget + x
	l.t = l.t*forget + t
	l.xx = l.xx*forget + x*x
	l.xt = l.xt*forget + x*t
}

// at returns the line's value at x. If all executions had one size, that is their mean. The slope is never negative,
// since larger batches do not take less time.
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
