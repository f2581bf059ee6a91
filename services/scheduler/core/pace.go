package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// pace is how fast a worker executes a model, compared with the costs of its kind of device. All
// instances of the model on one worker and kind share it.
//
// The workers of a kind share costs, so that a new one is known from the start. One that is
// throttled, or shares its processor, would raise the estimates of all others, and requests that
// those could have done in time would be refused. So it gets costs of its own.
type pace struct {
	kind *costs // of the kind of device
	own  *costs // nil while kind holds for the worker
	// mean is what an execution takes as a share of what kind says, exponentially weighted; n
	// counts the executions since the pace was last reset, the last of which ended at last.
	mean float64
	n    int
	last mono.Time
}

const (
	// measured is how many executions make a pace, and after how many it is compared again.
	measured = 16
	// A worker that takes slower times as long as the others of its kind gets costs of its own,
	// and shares theirs again when it takes less than alike times as long.
	slower, alike = 1.5, 1.25
	// oddest bounds what one execution counts: a machine may have stood still for a moment.
	oddest = 4
	// paceLife is after which time without an execution a slow worker counts as one like the
	// others, until it has been measured again: batches go to the fastest, so that it may not run.
	paceLife = time.Minute
)

// paceOn returns the pace of a worker on a device such as gpu:1, which the instances there share.
func (m *model) paceOn(w *worker, device string) *pace {
	kind := m.costsOn(device)
	for _, in := range m.instances {
		if in.worker == w && in.pace.kind == kind {
			return in.pace
		}
	}
	return &pace{kind: kind}
}

// costs are those that hold for the worker.
func (p *pace) costs() *costs {
	if p.own != nil {
		return p.own
	}
	return p.kind
}

// measure records an execution.
func (p *pace) measure(now mono.Time, size int64, s shape, took time.Duration) {
	expected, _ := p.kind.of(size, s)
	if expected <= 0 || took <= 0 || p.kind.at(s).warmed {
		return // nothing is known to compare it with
	}
	p.n++
	p.last = now
	p.mean += max(1/float64(p.n), slowest) * (min(took.Seconds()/expected, oddest) - p.mean)
}

// compare gives a worker costs of its own if it is slower than the others of its kind, and
// those of the kind if it is not any more.
func (m *model) compare(p *pace, now mono.Time) {
	if p.own != nil {
		if p.mean < alike {
			m.resetPace(p, nil, now)
		}
		return
	}
	var others []*pace
	sum := 0.0
	for _, in := range m.instances { // in the order of workers, so that those of one pace are neighbors
		q := in.pace
		if q == p || q.kind != p.kind || len(others) > 0 && others[len(others)-1] == q {
			continue
		}
		switch {
		case q.own != nil && now.Sub(q.last) > paceLife:
			m.resetPace(q, p.kind.scaled(1), now)
		case q.own == nil && q.n >= measured/2:
			others = append(others, q)
			sum += q.mean
		}
	}
	if len(others) == 0 || p.mean <= slower*sum/float64(len(others)) {
		return
	}
	// The kind's costs hold the slow executions, too: what the others take of them is what is left.
	share := sum / float64(len(others))
	m.resetPace(p, p.kind.scaled(p.mean), now)
	p.kind.by = p.kind.scaled(share).by
	for _, q := range others {
		q.mean /= share
	}
}

// resetPace has the instances of a pace use costs of their own, or with nil those of their kind,
// and measures it anew.
func (m *model) resetPace(p *pace, own *costs, now mono.Time) {
	p.own, p.mean, p.n, p.last = own, 0, 0, now
	for _, in := range m.instances {
		if in.pace == p {
			in.costs = p.costs()
		}
	}
}

// scaled is what executions take that take share times as long.
func (c *costs) scaled(share float64) *costs {
	next := &costs{by: slices.Clone(c.by)}
	for i := range next.by {
		e := &next.by[i]
		e.cells = slices.Clone(e.cells)
		for size := range e.cells {
			e.cells[size].mean *= share
		}
		e.line.t *= share
		e.line.xt *= share
	}
	return next
}
