package ensemble

import (
	"maps"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// constant is the scope, and the iteration, of what does not iterate.
const constant = -1

// Graph is an ensemble with specific versions of its composing models. It is immutable.
type Graph struct {
	name      string
	batches   bool
	decoupled bool
	steps     []step
	tensors   []node
	inputs    map[string]int // tensors by input name of the ensemble
	outputs   []int          // tensors, in the order of the ensemble's outputs
	whole     *plan          // for requests that want all outputs
}

// step is one step. Its scope is the decoupled step that makes it run once per response, or constant if it runs
// only once.
type step struct {
	model     string
	batches   bool
	decoupled bool
	scope     int
	inputs    []edge
	outputs   []edge
	// inner says that only steps that are plain models read its outputs. They are not outputs of the ensemble,
	// no step that is itself an ensemble reads them, since it may return them as its own outputs, and the
	// response cache does not read them.
	inner bool
}

// edge binds a model's input or output to a tensor of the ensemble.
type edge struct {
	io     *modelconfig.IO
	tensor int
}

// node is a tensor of the ensemble.
type node struct {
	name     string
	scope    int
	producer int             // a step; -1 for an input
	readers  []int           // steps
	input    *modelconfig.IO // nil unless it is an input of the ensemble
	output   *modelconfig.IO // nil unless it is an output of the ensemble
}

// New makes the graph of a valid ensemble whose steps have the given configurations. If a step maps something
// that its model does not have, the error has the reason config_invalid.
func New(c *modelconfig.Config, steps []*modelconfig.Config) (*Graph, error) {
	b := &builder{graph: &Graph{name: c.Name, batches: c.Batches(), decoupled: c.Decoupled, inputs: make(map[string]int)}, names: make(map[string]int)}
	for i := range c.Inputs {
		t := b.tensor(c.Inputs[i].Name)
		b.graph.tensors[t].input, b.graph.inputs[c.Inputs[i].Name] = &c.Inputs[i], t
	}
	for i := range steps {
		if err := b.step(&c.Ensemble.Steps[i], steps[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Outputs {
		t := b.tensor(c.Outputs[i].Name)
		b.graph.tensors[t].output, b.graph.outputs = &c.Outputs[i], append(b.graph.outputs, t)
	}
	if err := b.scopes(); err != nil {
		return nil, err
	}
	b.inner(steps)
	b.graph.whole = b.graph.plan(func(string) bool { return true })
	return b.graph, nil
}

type builder struct {
	graph *Graph
	names map[string]int // tensors
}

// tensor returns the tensor with a name, and adds it if it is new.
func (b *builder) tensor(name string) int {
	i, ok := b.names[name]
	if !ok {
		i = len(b.graph.tensors)
		b.names[name] = i
		b.graph.tensors = append(b.graph.tensors, node{name: name, scope: constant, producer: -1})
	}
	return i
}

func (b *builder) step(of *modelconfig.Step, c *modelconfig.Config) error {
	s, number := step{model: of.Model, batches: c.Batches(), decoupled: c.Decoupled, scope: constant}, len(b.graph.steps)
	for _, name := range slices.Sorted(maps.Keys(of.Inputs)) {
		io := c.Input(name)
		if io == nil {
			return errs.New(errs.ConfigInvalid, "step %d of ensemble '%s' maps the input '%s', which the model '%s' does not have", number, b.graph.name, name, of.Model)
		}
		t := b.tensor(of.Inputs[name])
		s.inputs = append(s.inputs, edge{io, t})
		if n := &b.graph.tensors[t]; !slices.Contains(n.readers, number) {
			n.readers = append(n.readers, number)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(of.Outputs)) {
		io := c.Output(name)
		if io == nil {
			return errs.New(errs.ConfigInvalid, "step %d of ensemble '%s' maps the output '%s', which the model '%s' does not have", number, b.graph.name, name, of.Model)
		}
		t := b.tensor(of.Outputs[name])
		s.outputs = append(s.outputs, edge{io, t})
		b.graph.tensors[t].producer = number
	}
	b.graph.steps = append(b.graph.steps, s)
	return nil
}

// inner finds the steps whose outputs only plain models read.
func (b *builder) inner(steps []*modelconfig.Config) {
	for i := range b.graph.steps {
		s := &b.graph.steps[i]
		read := func(reader int) bool { return steps[reader].Ensemble != nil || steps[reader].Reuses() }
		s.inner = !steps[i].Reuses() && !slices.ContainsFunc(s.outputs, func(out edge) bool {
			n := &b.graph.tensors[out.tensor]
			return n.output != nil || slices.ContainsFunc(n.readers, read)
		})
	}
}

// scopes determines which tensors iterate, and by which step: the outputs of a decoupled step iterate by that
// step, and those of others as their inputs do. Each pass resolves at least one more step, since a valid
// ensemble has no cycle.
func (b *builder) scopes() error {
	for range b.graph.steps {
		for i := range b.graph.steps {
			if err := b.scope(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// scope propagates the scopes of a step's inputs to its outputs.
func (b *builder) scope(i int) error {
	g := b.graph
	s := &g.steps[i]
	for _, in := range s.inputs {
		switch scope := g.tensors[in.tensor].scope; {
		case scope == constant:
		case s.scope == constant:
			s.scope = scope
		case s.scope != scope:
			return errs.New(errs.ConfigInvalid, "in ensemble %s, step of model '%s' receives inputs originated from different decoupled models", g.name, s.model)
		}
	}
	for _, out := range s.outputs {
		if g.tensors[out.tensor].scope = s.scope; s.decoupled {
			g.tensors[out.tensor].scope = i
		}
	}
	return nil
}

// Behind returns how long the steps behind a step take, given the time of each: the longest path to an output.
func (g *Graph) Behind(step int, takes func(step int) time.Duration) (longest time.Duration) {
	for _, out := range g.steps[step].outputs {
		for _, next := range g.tensors[out.tensor].readers {
			longest = max(longest, takes(next)+g.Behind(next, takes))
		}
	}
	return longest
}

// plan is the part of a graph that a request for certain outputs runs.
type plan struct {
	outputs  []int            // tensors, in the ensemble's order
	needed   []bool           // by step
	requests [][]infer.Output // of needed steps
	uses     []int            // by tensor: the needed steps that read it, and the response
}

// plan omits the steps that no wanted output depends on.
func (g *Graph) plan(wanted func(output string) bool) *plan {
	p := &plan{needed: make([]bool, len(g.steps)), requests: make([][]infer.Output, len(g.steps)), uses: make([]int, len(g.tensors))}
	for _, t := range g.outputs {
		if wanted(g.tensors[t].name) {
			p.outputs = append(p.outputs, t)
			p.uses[t]++
			p.need(g, t)
		}
	}
	for s := range g.steps {
		for _, out := range g.steps[s].outputs {
			if p.needed[s] && p.uses[out.tensor] > 0 {
				p.requests[s] = append(p.requests[s], infer.Output{Name: out.io.Name})
			}
		}
	}
	return p
}

// need adds the step that produces a tensor, and the steps before it.
func (p *plan) need(g *Graph, t int) {
	s := g.tensors[t].producer
	if s < 0 || p.needed[s] {
		return
	}
	p.needed[s] = true
	read := make(map[int]bool)
	for _, in := range g.steps[s].inputs {
		if !read[in.tensor] {
			read[in.tensor] = true
			p.uses[in.tensor]++
		}
		p.need(g, in.tensor)
	}
}

// fit returns a tensor's shape as its reader expects it, with or without a batch dimension. As in Triton, a
// leading 1 is added or removed if the rest then fits.
func fit(shape, dims tensor.Shape, batches bool) tensor.Shape {
	switch {
	case batches && len(shape) == len(dims) && dims.Admits(shape):
		return shape.Prepend(1)
	case !batches && len(shape) == len(dims)+1 && shape[0] == 1 && dims.Admits(shape[1:]):
		return shape[1:]
	}
	return shape
}

// reshape maps a tensor's shape from one pattern of an input or output to the other. A shape that does not fit
// is returned unchanged.
func reshape(io *modelconfig.IO, shape, from, to tensor.Shape, batches bool) tensor.Shape {
	var rows tensor.Shape
	if batches && len(shape) > 0 {
		rows, shape = shape[:1:1], shape[1:]
	}
	if io.HasReshape && from.Admits(shape) {
		return tensor.AppendReshaped(rows, from, to, shape)
	}
	return append(rows, shape...)
}
