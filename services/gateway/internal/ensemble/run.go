package ensemble

import (
	"slices"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// Run is one request on its way through a graph. One goroutine at a time uses it.
type Run struct {
	graph    *Graph
	plan     *plan
	request  *infer.Request
	values   [][]*value // by tensor, in no order
	ready    []*Execution
	underway int   // executions that were given out and have not ended
	counts   []int // responses of decoupled steps so far
	complete []*infer.Response
}

// Execution is one execution of a step.
type Execution struct {
	// Step is its number.
	Step int
	// Inputs are the model's, with references of their own; Outputs those that are
	// needed of it.
	Inputs   []infer.Tensor
	Outputs  []infer.Output
	Sequence infer.Sequence
	// Inner says that nobody reads the outputs but steps that are models, at the workers.
	Inner bool

	iteration int
	reads     []*value
}

// Release releases the inputs of an execution that does not begin.
func (e *Execution) Release() {
	for i := range e.Inputs {
		e.Inputs[i].Data.Release()
	}
}

// value is one tensor of one iteration.
type value struct {
	iteration int
	absent    bool // the step that makes it has left it out
	tensor    infer.Tensor
	from      *source // nil for an input of the request
	sequence  []infer.Parameter
	uses      int // by executions that have not ended, and by a response that is not complete
}

// source is a response of a step, whose tensors are read.
type source struct {
	response *infer.Response
	uses     atomic.Int32
}

func (s *source) release() {
	if s != nil && s.uses.Add(-1) == 0 {
		s.response.Release()
	}
}

// Begin starts a run of a checked request, which stays the caller's and is released
// after the run's end.
func (g *Graph) Begin(r *infer.Request) *Run {
	p := g.whole
	if len(r.Outputs) > 0 {
		p = g.plan(r.Wants)
	}
	run := &Run{graph: g, plan: p, request: r, values: make([][]*value, len(g.tensors)), counts: make([]int, len(g.steps))}
	for name, t := range g.inputs {
		at := slices.IndexFunc(r.Inputs, func(in infer.Tensor) bool { return in.Name == name })
		v := &value{iteration: constant, absent: at < 0}
		if at >= 0 {
			v.tensor = r.Inputs[at]
		}
		run.values[t] = []*value{v}
	}
	for s := range g.steps { // no step is looked at twice: those that need a step's outputs come with these
		if p.needed[s] && run.fed(s, constant) {
			run.begin(s, constant)
		}
	}
	for _, t := range p.outputs {
		if g.tensors[t].producer < 0 {
			run.assemble(constant)
			break
		}
	}
	return run
}

// Next returns an execution that is to begin, which has its inputs until [Run.Ended].
func (r *Run) Next() *Execution {
	if len(r.ready) == 0 {
		return nil
	}
	e := r.ready[0]
	r.ready = r.ready[1:]
	return e
}

// Respond takes a response of an execution over, which is no error.
func (r *Run) Respond(e *Execution, p *infer.Response) {
	s := &r.graph.steps[e.Step]
	if len(p.Outputs) == 0 && (s.decoupled || !p.Final) {
		p.Release() // the end alone
		return
	}
	from := &source{response: p}
	from.uses.Store(1)
	defer from.release()
	iteration := e.iteration
	if s.decoupled {
		iteration = r.counts[e.Step]
		r.counts[e.Step]++
	}
	override := sequenceParameters(p.Parameters)
	for _, out := range s.outputs {
		if r.plan.uses[out.tensor] == 0 {
			continue
		}
		v := &value{iteration: iteration, absent: true, sequence: override, uses: r.plan.uses[out.tensor]}
		if at := slices.IndexFunc(p.Outputs, func(t infer.Tensor) bool { return t.Name == out.io.Name }); at >= 0 {
			v.absent, v.tensor, v.from = false, p.Outputs[at], from
			from.uses.Add(1)
		}
		r.arrive(out.tensor, v)
	}
}

// Ended says that an execution has had its final response.
func (r *Run) Ended(e *Execution) {
	r.underway--
	for _, v := range e.reads {
		r.used(v)
	}
	e.reads = nil
}

// Response returns a response of the ensemble, or nil if none is complete now. The
// last one is final, and after it there are none.
func (r *Run) Response() *infer.Response {
	over := r.underway == 0 && len(r.ready) == 0
	switch {
	case len(r.complete) > 0 && (over || r.graph.decoupled):
		p := r.complete[0]
		r.complete = r.complete[1:]
		p.Final = !r.graph.decoupled
		return p
	case !over:
		return nil
	case r.graph.decoupled:
		return &infer.Response{Final: true}
	}
	return infer.Fail(r.request.Work, errs.New(errs.ResponseCount, "in ensemble '%s', unexpected deadlock, at least one output is not set while no more ensemble steps can be made", r.graph.name))
}

// Close releases what the run holds. Executions that have not ended are told no more.
func (r *Run) Close() {
	for _, e := range r.ready {
		e.Release()
	}
	for _, p := range r.complete {
		p.Release()
	}
	for _, list := range r.values {
		for _, v := range list {
			v.from.release()
		}
	}
	r.ready, r.complete, r.values = nil, nil, nil
}

// arrive takes in a tensor, and begins what has waited for it alone.
func (r *Run) arrive(t int, v *value) {
	r.values[t] = append(r.values[t], v)
	for _, s := range r.graph.tensors[t].readers {
		if !r.plan.needed[s] {
			continue
		}
		for _, iteration := range r.iterations(s, v) {
			if r.fed(s, iteration) {
				r.begin(s, iteration)
			}
		}
	}
	if slices.Contains(r.plan.outputs, t) {
		r.assemble(v.iteration)
	}
}

// iterations are those of a step that a new value may complete: its own, or all that
// wait for it where it does not iterate.
func (r *Run) iterations(s int, v *value) (list []int) {
	if v.iteration != constant || r.graph.steps[s].scope == constant {
		return []int{v.iteration}
	}
	for _, in := range r.graph.steps[s].inputs {
		if r.graph.tensors[in.tensor].scope == constant {
			continue
		}
		for _, other := range r.values[in.tensor] {
			list = append(list, other.iteration)
		}
		break
	}
	return list
}

// value returns a tensor for an iteration; nil if it is not there.
func (r *Run) value(t, iteration int) *value {
	for _, v := range r.values[t] {
		if v.iteration == iteration || v.iteration == constant {
			return v
		}
	}
	return nil
}

// fed reports whether all inputs of a step are there. One that was left out is none,
// unless the model can do without it.
func (r *Run) fed(s, iteration int) bool {
	for _, in := range r.graph.steps[s].inputs {
		if v := r.value(in.tensor, iteration); v == nil || v.absent && !in.io.Optional {
			return false
		}
	}
	return true
}

func (r *Run) begin(s, iteration int) {
	of := &r.graph.steps[s]
	e := &Execution{Step: s, Outputs: r.plan.requests[s], Sequence: r.request.Sequence, Inner: of.inner, iteration: iteration}
	for _, in := range of.inputs {
		v := r.value(in.tensor, iteration)
		if !slices.Contains(e.reads, v) {
			e.reads = append(e.reads, v)
		}
		override(&e.Sequence, v.sequence)
		if !v.absent {
			e.Inputs = append(e.Inputs, infer.Tensor{
				Name: in.io.Name, Datatype: v.tensor.Datatype, Shape: fit(v.tensor.Shape, in.io, of.batches), Data: v.tensor.Data.Retain(),
			})
		}
	}
	r.ready = append(r.ready, e)
	r.underway++
}

// used ends one use of a value. What does not iterate may be used again by every
// iteration, of a step or of the response, and stays where there are such.
func (r *Run) used(v *value) {
	if v.uses--; v.uses > 0 || v.from == nil || v.iteration == constant && r.iterates() {
		return
	}
	for t := range r.values {
		if at := slices.Index(r.values[t], v); at >= 0 {
			r.values[t] = slices.Delete(r.values[t], at, at+1)
			break
		}
	}
	v.from.release()
}

// iterates reports whether there may be more than one value of some tensor.
func (r *Run) iterates() bool {
	return slices.ContainsFunc(r.graph.tensors, func(n node) bool { return n.scope != constant })
}

// assemble makes the ensemble's response for an iteration, or for all that wait for
// what does not iterate, if it is complete.
func (r *Run) assemble(iteration int) {
	iterations := []int{iteration}
	if iteration == constant {
		for _, t := range r.plan.outputs {
			if r.graph.tensors[t].scope != constant {
				iterations = nil
				for _, v := range r.values[t] {
					iterations = append(iterations, v.iteration)
				}
				break
			}
		}
	}
	for _, i := range iterations {
		r.completeIteration(i)
	}
}

func (r *Run) completeIteration(iteration int) {
	var sources []*source
	p := &infer.Response{Work: r.request.Work}
	values := make([]*value, 0, len(r.plan.outputs))
	for _, t := range r.plan.outputs {
		v := r.value(t, iteration)
		if v == nil || v.absent && !r.graph.decoupled {
			return
		}
		values = append(values, v)
	}
	for i, v := range values {
		if v.absent {
			continue
		}
		io := r.graph.tensors[r.plan.outputs[i]].output
		p.Outputs = append(p.Outputs, infer.Tensor{Name: io.Name, Datatype: v.tensor.Datatype, Shape: fit(v.tensor.Shape, io, r.graph.batches), Data: v.tensor.Data.Retain()})
		if v.from != nil && !slices.Contains(sources, v.from) {
			v.from.uses.Add(1)
			sources = append(sources, v.from)
		}
	}
	p.OnRelease = func() {
		for _, s := range sources {
			s.release()
		}
	}
	r.complete = append(r.complete, p)
	for _, v := range values {
		r.used(v)
	}
}

// The parameters by which the response of a step sets the sequence of those that read it.
const (
	sequenceID    = "sequence_id"
	sequenceStart = "sequence_start"
	sequenceEnd   = "sequence_end"
)

func sequenceParameters(list []infer.Parameter) (of []infer.Parameter) {
	for _, p := range list {
		if p.Key == sequenceID || p.Key == sequenceStart || p.Key == sequenceEnd {
			of = append(of, p)
		}
	}
	return of
}

func override(s *infer.Sequence, parameters []infer.Parameter) {
	for _, p := range parameters {
		switch v := p.Value.(type) {
		case int64:
			if p.Key == sequenceID {
				s.ID, s.Key = uint64(v), "" //nolint:gosec // G115: the bits are the ID's
			}
		case string:
			if p.Key == sequenceID {
				s.ID, s.Key = 0, v
			}
		case bool:
			switch p.Key {
			case sequenceStart:
				s.Start = v
			case sequenceEnd:
				s.End = v
			}
		}
	}
}
