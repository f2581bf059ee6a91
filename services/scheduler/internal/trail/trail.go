// Package trail remembers the core's decisions about recent requests, to explain them.
package trail

import (
	"fmt"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/ring"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Trail records the core's steps: see dispatch.Recorder. Its other methods must be called between two steps.
type Trail struct {
	now    mono.Time
	recent ring.Ring[record]
	waits  map[infer.Unit]wait // of units that wait although an instance is free
}

// record is how a unit left the queue.
type record struct {
	unit      infer.Unit
	model     infer.ModelRef
	enqueued  mono.Time
	predicted mono.Time // when it was expected to be done, as estimated on arrival; 0 without a deadline
	decided   mono.Time
	reason    errs.Reason // why it was refused or has failed; empty if it was dispatched
	short     time.Duration
	batch     infer.BatchID
	instance  infer.InstanceID
	requests  int
	size      int64
	wait      wait // of its batch
}

// wait is what the first unit of a batch last waited for although an instance was free.
type wait struct {
	since  mono.Time
	reason errs.Reason // empty means that others may join
}

// mostWaits limits the remembered waits of units that are not dispatched.
const mostWaits = 4096

// New returns a trail that remembers at most the given number of units.
func New(most int) *Trail {
	return &Trail{recent: ring.New[record](most), waits: make(map[infer.Unit]wait)}
}

// Event records the time.
func (t *Trail) Event(now mono.Time, _ *core.Event) { t.now = now }

// Decided records what becomes of units.
func (t *Trail) Decided(list []core.Decision) {
	for i := range list {
		switch d := &list[i]; d.Kind {
		case core.Wait:
			if len(t.waits) >= mostWaits {
				clear(t.waits)
			}
			w := wait{since: t.now, reason: d.Reason}
			if before, ok := t.waits[d.Unit]; ok {
				w.since = before.since
			}
			t.waits[d.Unit] = w
		case core.Dispatch:
			t.dispatched(d)
		case core.Refuse, core.Fail:
			it := d.Item()
			delete(t.waits, d.Unit)
			r := t.left(it)
			r.reason = d.Reason
			if d.Kind == core.Refuse {
				r.short = time.Duration(d.A)
			}
			t.recent.Add(r)
		default:
		}
	}
}

func (t *Trail) dispatched(d *core.Decision) {
	b := d.Members()
	var waited wait
	if len(t.waits) > 0 {
		for _, it := range b.Items {
			if w, ok := t.waits[it.Unit()]; ok {
				waited = w
				delete(t.waits, it.Unit())
			}
		}
	}
	for _, it := range b.Items {
		r := t.left(it)
		r.batch, r.instance, r.requests, r.size, r.wait = d.Batch, d.Instance, len(b.Items), b.Size, waited
		t.recent.Add(r)
	}
}

// left returns the record of a unit that leaves the queue now.
func (t *Trail) left(it *core.Item) record {
	return record{unit: it.Unit(), model: it.Model, enqueued: it.Enqueued, predicted: it.Predicted, decided: t.now}
}

// Of returns the decisions about the units of a request, in order; nil if nothing is known.
func (t *Trail) Of(request infer.RequestID) (list []infer.ExplainedDecision) {
	for r := range t.recent.All() {
		if r.unit.Request == request {
			list = append(list, r.explain())
		}
	}
	return list
}

func (r *record) explain() infer.ExplainedDecision {
	e := infer.ExplainedDecision{Model: r.model.ID().String(), Version: r.model.Version, Step: r.unit.Step, Iteration: r.unit.Iteration, Queued: r.decided.Sub(r.enqueued).Seconds(), Reason: string(r.reason)}
	if r.predicted != 0 {
		e.Predicted = r.predicted.Sub(r.enqueued).Seconds()
	}
	if r.reason != "" {
		e.What = "refused: " + r.reason.Summary()
		if r.short > 0 {
			e.What += fmt.Sprintf(" It could be met %v later.", r.short)
		}
		return e
	}
	e.Batch, e.Requests, e.Size, e.Worker, e.Instance = r.batch.String(), r.requests, r.size, r.instance.Worker, r.instance.Slot
	e.What = "dispatched"
	if r.wait.since != 0 {
		e.Waited, e.WaitedFor = r.decided.Sub(max(r.wait.since, r.enqueued)).Seconds(), waitedFor(r.wait.reason)
	}
	return e
}

// waitedFor describes what a wait is for.
func waitedFor(reason errs.Reason) string {
	switch reason {
	case "":
		return "others to join the batch"
	case core.WaitResources:
		return "resources of the rate limiter, or its turn"
	case core.WaitMemory:
		return "memory for the batch at the worker"
	}
	return string(reason)
}
