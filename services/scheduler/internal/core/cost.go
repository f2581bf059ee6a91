package core

import "time"

// costs is what a model's executions have taken on one kind of device, by
// batch size. Estimates are upper ones, mean plus twice the mean deviation, as
// they answer whether a deadline will be met. Without a single execution they
// are 0: nothing is refused before something is known.
//
// Mean and deviation are exponentially weighted, as in TCP's round-trip
// estimator (Jacobson, SIGCOMM 1988). A batch size that has been seen too
// seldom is estimated by a line through all sizes, fitted by least squares
// with exponential forgetting.
type costs struct {
	cells []cell // by rows, from 1
	line  line
}

// cell is one batch size. Times are in seconds.
type cell struct {
	n         int
	mean, dev float64
}

const (
	// trusted is how many executions of one size make its own estimate.
	trusted = 8
	// slowest is the gain of the means once they have settled.
	slowest = 1.0 / 16
	// sizes bounds the batch sizes with an estimate of their own.
	sizes = 1024
)

// learn takes in one execution.
func (c *costs) learn(rows int64, took time.Duration) {
	if took <= 0 || rows < 1 {
		return
	}
	c.line.add(float64(rows), took.Seconds())
	if rows > sizes {
		return
	}
	if missing := int(rows) - len(c.cells); missing > 0 {
		c.cells = append(c.cells, make([]cell, missing)...)
	}
	c.cells[rows-1].add(took.Seconds())
}

// estimate is how long a batch of so many rows will hardly exceed.
func (c *costs) estimate(rows int64) time.Duration {
	mean, dev := c.of(rows)
	return seconds(mean + 2*dev)
}

// mean is how long a batch of so many rows takes as a rule.
func (c *costs) mean(rows int64) time.Duration {
	mean, _ := c.of(rows)
	return seconds(mean)
}

// of returns mean and deviation of a batch of so many rows, in seconds.
func (c *costs) of(rows int64) (mean, dev float64) {
	if rows >= 1 && rows <= int64(len(c.cells)) {
		if own := &c.cells[rows-1]; own.n >= trusted {
			return own.mean, own.dev
		}
	}
	return max(c.line.at(float64(rows)), 0), c.line.dev
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (c *cell) add(t float64) {
	c.n++
	gain := max(1/float64(c.n), slowest)
	if c.n == 1 {
		c.mean = t
		return
	}
	off := t - c.mean
	c.mean += gain * off
	c.dev += gain * (abs(off) - c.dev)
}

// line is t = a + b·rows, fitted to weighted sums.
type line struct {
	n               int
	w, x, t, xx, xt float64
	dev             float64
}

// forget is how much an execution weighs less with each later one.
const forget = 0.98

func (l *line) add(x, t float64) {
	if l.n > 0 {
		l.dev += slowest * (abs(t-l.at(x)) - l.dev)
	}
	l.n++
	l.w = l.w*forget + 1
	l.x = l.x*forget + x
	l.t = l.t*forget + t
	l.xx = l.xx*forget + x*x
	l.xt = l.xt*forget + x*t
}

// at is the line's value: the mean where all executions had one size, and
// never less than the line's value at one row, since more rows do not take
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
