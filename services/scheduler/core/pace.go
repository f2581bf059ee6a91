package core

import (
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// pace is how fast a worker executes a model, compared with the costs of its kind of device. All instances of the
// model on the same worker and kind of device share it.
//
// Workers of a kind share costs, so the costs of a new worker are known from the start. A worker that is throttled,
// or shares its processor, would raise the estimates of all others, and the scheduler would refuse requests that the
// others could have done in time. Such a worker therefore gets costs of its own.
type pace struct {
	kind *costs // of the kind of device
	own  *costs // nil while kind applies to the worker
	// mean is the execution time relative to what kind says, exponentially weighted. n counts the executions since
	// the pace was last reset; last is when the latest of them ended.
	mean float64
	n    int
	last mono.Time
}

const (
	// measured is how many executions a pace needs before it is compared, and how many lie between comparisons.
	measured = 16
	// A worker that takes more than slower times as long as the others of its kind gets costs of its own. It shares
	// theirs again when it takes less than alike times as long.
	slower, alike = 1.5, 1.25
	// oddest caps the weight of one execution: a machine may have stalled for a moment.
	oddest = 4
	// paceLife is how long a slow worker may go without an execution before it counts like the others until it is
	// measured again. Batches go to the fastest worker, so a slow one might otherwise never run.
	paceLife = time.Minute
)

// paceOn returns the pace of a worker on a device such as gpu:1, which the worker's instances there share.
func (m *model) paceOn(w *worker, device string) *pace {
	kind := m.costsOn(device)
	for _, in := range m.instances {
		if in.worker == w && in.pace.kind == kind {
			return in.pace
		}
	}
	return &pace{kind: kind}
}

// costs returns the costs that apply to the worker.
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
		return // there is nothing to compare it with
	}
	p.n++
	p.last = now
	p.mean += max(1/float64(p.n), slowest) * (min(took.Seconds()/expected, oddest) - p.mean)
}

// compare gives a worker costs of its own if it is slower than the others of its kind, and the kind's costs once it
// no longer is.
func (m *model) compare(p *pace, now mono.Time) {
	if p.own != nil {
		if p.mean < alike {
			m.resetPace(p, nil, now)
		}
		return
	}
	var others []*pace
	sum := 0.0
	for _, in := range m.instances { // in the order of workers, so instances that share a pace are neighbors
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
	// The kind's costs include the slow executions. Scaled by the others' share, they are what the others take.
	share := sum / float64(len(others))
	m.resetPace(p, p.kind.scaled(p.mean), now)
	p.kind.by = p.kind.scaled(share).by
	for _, q := range others {
		q.mean /= share
	}
}

// resetPace gives the instances of a pace costs of their own, or those of their kind if own is nil, and starts
// measuring again.
func (m *model) resetPace(p *pace, own *costs, now mono.Time) {
	p.own, p.mean, p.n, p.last = own, 0, 0, now
	for _, in := range m.instances {
		if in.pace == p {
			in.costs = p.costs()
		}
	}
}

// scaled returns the costs of executions that take share times as long.
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
