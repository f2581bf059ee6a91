package simulate

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
)

// Trace is the content of a decision log.
type Trace struct {
	Workload *Workload
	// Costs are the costs of the executions, except for the first of each instance. Way is the time before and after
	// them.
	Costs *Costs
	Way   Way
	// Recorded is what became of the requests.
	Recorded *Report
}

// ReadTrace reads a decision log. If the log is cut off, it returns what precedes the cut, and an error that is
// [decisionlog.ErrTruncated].
func ReadTrace(in io.Reader) (*Trace, error) {
	log, err := decisionlog.NewReader(in)
	if err != nil {
		return nil, err
	}
	limits, err := log.Header.Limits()
	if err != nil {
		return nil, err
	}
	t := &tracer{
		Workload: &Workload{Limits: limits},
		costs:    NewCosts(), models: make(map[infer.ModelRef]int32), requests: make(map[infer.RequestID]int32),
		batches: make(map[infer.BatchID]*recorded), instances: make(map[infer.InstanceID]*seen),
	}
	var step decisionlog.Step
	for err == nil {
		if err = log.Next(&step); err == nil {
			t.step(&step)
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case !errors.Is(err, decisionlog.ErrTruncated):
		return nil, err
	}
	if len(t.Arrivals) == 0 {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the decision log has no requests: write one of a server that serves some")
	}
	return t.trace(), err
}

// tracer follows a log.
type tracer struct {
	*Workload
	costs     *Costs
	firsts    []execution
	models    map[infer.ModelRef]int32
	requests  map[infer.RequestID]int32
	results   []result
	batches   map[infer.BatchID]*recorded
	instances map[infer.InstanceID]*seen
	usage     usage
	decisions int
	// way collects the overheads of batches; those before an execution only for instances that were free.
	way   Way
	leads bool
}

// recorded is a batch that was dispatched.
type recorded struct {
	units  []int32
	size   int64
	at     mono.Time
	behind bool // another batch was there
}

// seen is an instance that was granted.
type seen struct {
	model infer.ModelRef
	kind  string
	ran   bool
	under int // batches
}

// execution is a recorded execution.
type execution struct {
	device
	shape     uint8
	batchSize int64
	sample
}

func (t *tracer) step(s *decisionlog.Step) {
	t.event(s)
	t.decisions += len(s.Decisions)
	for i := range s.Decisions {
		switch d := &s.Decisions[i]; d.Kind {
		case core.Dispatch:
			t.dispatch(s.Now, d)
		case core.Refuse:
			t.end(d.Unit, result{end: s.Now, outcome: refused, reason: d.Reason})
		case core.Fail:
			t.end(d.Unit, result{end: s.Now, outcome: failed, reason: d.Reason})
		case core.Requeue, core.UnknownBatch:
			t.forget(d.Batch)
		default: // completions say more than the decisions about them
		}
	}
}

func (t *tracer) event(s *decisionlog.Step) {
	e := s.Event
	switch e.Kind {
	case core.Submit:
		t.submit(e.Item)
	case core.Cancel:
		if i, ok := t.requests[e.Unit.Request]; ok && t.results[i].outcome == unfinished && t.Arrivals[i].Canceled == 0 {
			t.Arrivals[i].Canceled = s.Now
		}
	case core.InstanceFree:
		t.completed(s.Now, &e)
	case core.UnitDone:
		t.end(e.Done.Work.Unit(), result{end: e.Done.At, outcome: executed})
	case core.BecomeLeader:
		if !t.leads {
			t.change(s.Now, e)
		}
		t.leads = true
	case core.Configure:
		if t.Models[t.model(e.Model.Ref)].Config == nil {
			t.Models[t.model(e.Model.Ref)].Config = e.Model.Config
			t.change(s.Now, e)
		}
	case core.Learned, core.Remove, core.Retire, core.MemoryReported:
		t.change(s.Now, e)
	case core.WorkerConnected:
		e.Held = &infer.Held{}
		t.change(s.Now, e)
	case core.WorkerLost:
		t.change(s.Now, e)
		t.lose(e.Instance.Worker)
	case core.WorkerDisconnected:
		t.change(s.Now, core.Event{Kind: core.WorkerLost, Instance: e.Instance, Released: true})
		t.lose(e.Instance.Worker)
	case core.Granted:
		t.grant(s.Now, e)
	default: // leases, the store and the time
	}
}

func (t *tracer) change(at mono.Time, e core.Event) { t.Changes = append(t.Changes, Change{at, e}) }

func (t *tracer) model(ref infer.ModelRef) int32 {
	m, ok := t.models[ref]
	if !ok {
		m = int32(len(t.Models))
		t.models[ref] = m
		t.Models = append(t.Models, core.Model{Ref: ref})
	}
	return m
}

// grant records an instance. Further grants only return its credits.
func (t *tracer) grant(at mono.Time, e core.Event) {
	g := *e.Grant
	if t.instances[g.Instance] != nil {
		return
	}
	kind, _, _ := strings.Cut(g.Device, ":")
	t.instances[g.Instance] = &seen{model: g.Model, kind: kind}
	t.model(g.Model)
	g.Credits = 1 + g.Pipelined
	e.Grant = &g
	t.change(at, e)
}

// lose forgets the instances of a worker. A worker that reconnects grants them again.
func (t *tracer) lose(worker uint64) {
	for id := range t.instances {
		if id.Worker == worker {
			delete(t.instances, id)
		}
	}
}

// submit records the first submission of a request.
func (t *tracer) submit(it *core.Item) {
	if _, ok := t.requests[it.Work.Request]; ok || it.Work.Step != 0 || it.Work.Iteration != 0 {
		return
	}
	t.requests[it.Work.Request] = int32(len(t.Arrivals))
	t.Arrivals = append(t.Arrivals, Arrival{
		At: it.Enqueued, Model: t.model(it.Model), Origin: it.Work.Request.Origin, BatchSize: it.BatchSize, Bytes: it.Bytes,
		Priority: it.Request.Priority, Timeout: it.Request.Timeout, Deadline: it.Deadline, Inputs: it.Request.Inputs, Sequence: it.Request.Sequence,
		Tenant: it.Request.Tenant, Share: it.Request.Share,
	})
	t.results = append(t.results, result{})
}

func (t *tracer) end(u infer.Unit, r result) {
	if i, ok := t.requests[u.Request]; ok && t.results[i].outcome == unfinished {
		t.results[i] = r
	}
}

func (t *tracer) dispatch(at mono.Time, d *decisionlog.Decision) {
	b := &recorded{size: d.A, at: at}
	for _, u := range d.Units {
		i, ok := t.requests[u.Request]
		if !ok {
			i = -1
		}
		b.units = append(b.units, i)
	}
	t.batches[d.Batch] = b
	if in := t.instances[d.Instance]; in != nil {
		b.behind = in.under > 0
		in.under++
	}
}

// forget forgets a batch that will not complete.
func (t *tracer) forget(id infer.BatchID) { delete(t.batches, id) }

// completed records the ends of a batch's requests, and how long it took.
func (t *tracer) completed(now mono.Time, e *core.Event) {
	c := e.Ended
	in := t.instances[c.Instance]
	if in != nil {
		in.under = max(in.under-1, 0)
	}
	b := t.batches[c.Batch]
	if b == nil {
		return // of an earlier scheduler
	}
	t.forget(c.Batch)
	inTime, rows := int64(0), uint8(0)
	for j, i := range b.units {
		if i < 0 {
			continue
		}
		a := &t.Arrivals[i]
		if config := t.Models[a.Model].Config; config != nil {
			rows = max(rows, shape(config, a.Inputs))
		}
		if t.results[i].outcome != unfinished || len(c.Ends) > j && c.Ends[j] != infer.UnitEnded {
			continue
		}
		t.results[i] = ended(c, j, now)
		if t.results[i].outcome == executed && inTimeFor(a, t.results[i].end) {
			inTime += a.BatchSize
		}
	}
	took := c.Timing.Done.Sub(c.Timing.Start)
	if c.Executions == 0 || took <= 0 {
		return
	}
	t.usage.add(took, len(b.units), inTime, b.size)
	if in == nil || c.Executions != 1 {
		return
	}
	s := execution{device{in.model.ID().Key(), in.kind}, rows, b.size, sample{c.Timing.Start, took}}
	if !in.ran {
		in.ran = true
		t.firsts = append(t.firsts, s)
		return
	}
	t.costs.add(s.device, s.shape, s.batchSize, s.sample)
	if !b.behind {
		t.way.before = append(t.way.before, sample{b.at, max(c.Timing.Start.Sub(b.at), 0)})
	}
	t.way.after = append(t.way.after, sample{c.Timing.Done, max(now.Sub(c.Timing.Done), 0)})
}

// ended returns the result that a completion reports for a unit.
func ended(c *infer.InstanceFree, unit int, now mono.Time) result {
	r := result{end: c.Timing.Done, outcome: executed}
	if c.Executions == 0 || r.end == 0 {
		r.end = now
	}
	if unit < len(c.Outcomes) {
		switch c.Outcomes[unit] {
		case infer.Failed:
			r.outcome, r.reason = failed, errs.ExecutionFailed
		case infer.Canceled:
			r.reason = errs.Canceled
		default: // a rejected one is late
		}
	}
	return r
}

// trace returns what the log contained.
func (t *tracer) trace() *Trace {
	for _, s := range t.firsts { // where nothing else is known
		if t.costs.of[s.device] == nil {
			t.costs.add(s.device, s.shape, s.batchSize, s.sample)
		}
	}
	t.costs.sort()
	t.way.Before, t.way.After = median(t.way.before), median(t.way.after)
	byTime(t.way.before)
	byTime(t.way.after)
	t.sort()
	t.Changes = slices.DeleteFunc(t.Changes, t.ending)
	r := newReport("recorded", t.Workload, t.results, t.usage)
	r.Decisions = t.decisions
	return &Trace{Workload: t.Workload, Costs: t.costs, Way: t.way, Recorded: r}
}

// ending reports whether a change removes something after the last request: the server was stopping, and the
// simulation may not have answered everything by then.
func (t *tracer) ending(c Change) bool {
	switch c.Event.Kind {
	case core.Remove, core.Retire, core.WorkerLost:
		return c.At > t.Arrivals[len(t.Arrivals)-1].At
	}
	return false
}

// sort sorts the arrivals: requests are recorded a moment after they arrived.
func (t *tracer) sort() {
	order := make([]int, len(t.Arrivals))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.Arrivals[a].At, t.Arrivals[b].At) })
	arrivals, results := make([]Arrival, len(order)), make([]result, len(order))
	for to, from := range order {
		arrivals[to], results[to] = t.Arrivals[from], t.results[from]
	}
	t.Arrivals, t.results = arrivals, results
}

func median(list []sample) time.Duration {
	if len(list) == 0 {
		return 0
	}
	slices.SortFunc(list, func(a, b sample) int { return cmp.Compare(a.took, b.took) })
	return list[len(list)/2].took
}
