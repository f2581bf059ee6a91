package ensemble

import (
	"slices"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Run is one request in progress through a graph. Only one goroutine may use it at a time.
type Run struct {
	graph    *Graph
	plan     *plan
	request  *infer.Request
	values   [][]*value // by tensor, unordered
	ready    []*Execution
	underway int   // executions that were returned by Next and have not ended
	counts   []int // responses of decoupled steps so far
	complete []Response
	final    bool // the last response is complete
}

// Response is a response of the ensemble. Missing names the wanted outputs that no step produced.
type Response struct {
	*infer.Response
	Missing []string
}

// Execution is one execution of a step.
type Execution struct {
	// Step is the step's number.
	Step int
	// Inputs are the model's inputs, with references of their own; Outputs are the outputs that are needed.
	Inputs   []infer.Tensor
	Outputs  []infer.Output
	Sequence infer.Sequence
	// Inner says that only steps that are plain models read the outputs, at the workers.
	Inner bool

	iteration int
	responded bool
	reads     []*value
}

// Release releases the inputs of an execution that will not start.
func (e *Execution) Release() {
	for i := range e.Inputs {
		e.Inputs[i].Data.Release()
	}
}

// value is one tensor of one iteration.
type value struct {
	iteration int
	absent    bool // the step that produces it omitted it
	tensor    infer.Tensor
	from      *source         // nil for an input of the request
	sequence  *infer.Sequence // of the step that produced it; nil for an input of the request
	uses      int             // by executions that have not ended and by incomplete responses
}

// source is a response of a step whose tensors are being read.
type source struct {
	response *infer.Response
	uses     atomic.Int32
}

func (s *source) release() {
	if s != nil && s.uses.Add(-1) == 0 {
		s.response.Release()
	}
}

// Begin starts a run of a checked request. The caller still owns the request and releases it after the run has
// ended.
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
			io := g.tensors[t].input
			v.tensor = r.Inputs[at]
			v.tensor.Shape = reshape(io, v.tensor.Shape, io.Dims, io.BackendDims(), g.batches)
		}
		run.values[t] = []*value{v}
	}
	for s := range g.steps { // each step is examined once: steps that need other outputs start when these arrive
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
	run.finish(0)
	return run
}

// Next returns an execution that should start, or nil if there is none now. The execution keeps its inputs
// until its final response.
func (r *Run) Next() *Execution {
	if len(r.ready) == 0 {
		return nil
	}
	e := r.ready[0]
	r.ready = r.ready[1:]
	return e
}

// Respond takes over a response of an execution, which must not be an error. A final one ends the execution.
func (r *Run) Respond(e *Execution, p *infer.Response) {
	complete, final := len(r.complete), p.Final
	if final {
		r.underway--
	}
	if endOnly := len(p.Outputs) == 0 && final && (r.graph.steps[e.Step].decoupled || e.responded); endOnly {
		p.Release()
	} else {
		e.responded = true
		r.consume(e, p)
	}
	if final {
		for _, v := range e.reads {
			r.used(v)
		}
		e.reads = nil
	}
	r.finish(complete)
}

// consume distributes the outputs of a response. An output that it lacks is absent for its readers.
func (r *Run) consume(e *Execution, p *infer.Response) {
	s := &r.graph.steps[e.Step]
	from := &source{response: p}
	from.uses.Store(1)
	defer from.release()
	iteration := e.iteration
	if s.decoupled {
		iteration = r.counts[e.Step]
		r.counts[e.Step]++
	}
	sequence := outputSequence(e.Sequence, p.Parameters)
	for _, out := range s.outputs {
		if r.plan.uses[out.tensor] == 0 {
			continue
		}
		v := &value{iteration: iteration, absent: true, sequence: sequence, uses: r.plan.uses[out.tensor]}
		if at := slices.IndexFunc(p.Outputs, func(t infer.Tensor) bool { return t.Name == out.io.Name }); at >= 0 {
			v.absent, v.tensor, v.from = false, p.Outputs[at], from
			from.uses.Add(1)
		}
		r.arrive(out.tensor, v)
	}
}

// finish marks the last response completed since there were complete of them as final, if nothing is in
// progress any more. As in Triton, a decoupled ensemble whose last step ends after its last response has a
// separate end instead.
func (r *Run) finish(complete int) {
	if r.underway > 0 || r.final {
		return
	}
	if last := len(r.complete) - 1; last >= complete {
		r.complete[last].Final, r.final = true, true
	}
}

// Response returns a response of the ensemble, or an empty one if none is complete now. The final one is the
// last.
func (r *Run) Response() Response {
	switch {
	case len(r.complete) > 0 && (r.underway == 0 || r.graph.decoupled):
		return r.Completed()
	case r.underway == 0 && !r.final:
		r.final = true
		return Response{Response: &infer.Response{Final: true}}
	}
	return Response{}
}

// Completed returns the next complete response, whatever is in progress, or an empty one if there is none.
func (r *Run) Completed() Response {
	if len(r.complete) == 0 {
		return Response{}
	}
	p := r.complete[0]
	r.complete = r.complete[1:]
	return p
}

// Close releases what the run holds. Executions that have not ended must not be reported any more.
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

// arrive records a tensor, and starts the executions that were waiting only for it.
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

// iterations returns the iterations of a step that a new value may complete: its own, or all that wait for it
// if it does not iterate.
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

// value returns a tensor for an iteration, or nil if it has not arrived.
func (r *Run) value(t, iteration int) *value {
	for _, v := range r.values[t] {
		if v.iteration == iteration || v.iteration == constant {
			return v
		}
	}
	return nil
}

// fed reports whether all inputs of a step are known. The step is executed without absent inputs; the check of
// its request refuses it if its model needs them.
func (r *Run) fed(s, iteration int) bool {
	return !slices.ContainsFunc(r.graph.steps[s].inputs, func(in edge) bool { return r.value(in.tensor, iteration) == nil })
}

func (r *Run) begin(s, iteration int) {
	of := &r.graph.steps[s]
	e := &Execution{Step: s, Outputs: r.plan.requests[s], Sequence: r.request.Sequence, Inner: of.inner, iteration: iteration}
	for _, in := range of.inputs {
		v := r.value(in.tensor, iteration)
		if !slices.Contains(e.reads, v) {
			e.reads = append(e.reads, v)
		}
		r.override(&e.Sequence, v)
		if !v.absent {
			e.Inputs = append(e.Inputs, infer.Tensor{
				Name: in.io.Name, Datatype: v.tensor.Datatype, Shape: fit(v.tensor.Shape, in.io.Dims, of.batches), Data: v.tensor.Data.Retain(),
			})
		}
	}
	r.ready = append(r.ready, e)
	r.underway++
}

// used ends one use of a value. A value that does not iterate may be used again by every iteration of a step or
// of the response, and is retained if there are iterations.
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

// assemble builds the ensemble's response for an iteration if it is complete, or, for a value that does not
// iterate, the responses of all iterations that were waiting for it.
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
	values := make([]*value, 0, len(r.plan.outputs))
	for _, t := range r.plan.outputs {
		v := r.value(t, iteration)
		if v == nil {
			return
		}
		values = append(values, v)
	}
	p := Response{Response: &infer.Response{Work: r.request.Work}}
	sequence, inSequence := r.request.Sequence, false
	var sources []*source
	for i, v := range values {
		io := r.graph.tensors[r.plan.outputs[i]].output
		if v.absent {
			p.Missing = append(p.Missing, io.Name)
			continue
		}
		shape := fit(v.tensor.Shape, io.BackendDims(), r.graph.batches)
		p.Outputs = append(p.Outputs, infer.Tensor{
			Name: io.Name, Datatype: v.tensor.Datatype, Shape: reshape(io, shape, io.BackendDims(), io.Dims, r.graph.batches), Data: v.tensor.Data.Retain(),
		})
		inSequence = inSequence || v.sequence != nil
		r.override(&sequence, v)
		if v.from != nil && !slices.Contains(sources, v.from) {
			v.from.uses.Add(1)
			sources = append(sources, v.from)
		}
	}
	if inSequence {
		p.Parameters = sequenceParameters(sequence)
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
