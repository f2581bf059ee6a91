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

// constant is the scope of what does not iterate, and its iteration.
const constant = -1

// Graph is an ensemble for certain versions of the models that it is composed of. It
// is immutable.
type Graph struct {
	name      string
	batches   bool
	decoupled bool
	steps     []step
	tensors   []node
	inputs    map[string]int // tensors by the ensemble's inputs
	outputs   []int          // tensors, in the order of the ensemble's outputs
	whole     *plan          // for requests of all outputs
}

// step is one step. Its scope is the decoupled step for each of whose responses it
// runs; constant if it runs once.
type step struct {
	model     string
	batches   bool
	decoupled bool
	scope     int
	inputs    []edge
	outputs   []edge
	// inner says that models alone read its outputs: neither are they the ensemble's, nor
	// does a step take them that is an ensemble itself, whose outputs they may be, nor are
	// they looked at for requests that are equal.
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
	input    *modelconfig.IO // nil if it is no input of the ensemble
	output   *modelconfig.IO // nil if it is no output of the ensemble
}

// New makes the graph of a valid ensemble whose steps run by the given
// configurations. The error has the reason config_invalid: a step maps what its model
// does not have.
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

// tensor returns the tensor of a name, which may be new.
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

// inner finds out which steps have outputs that models alone read.
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

// scopes finds out which tensors iterate by which step: what a decoupled step gives
// does by that step, and what others give as their inputs do. A pass settles at least
// one step more, since a valid ensemble has no circle.
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

// scope passes the scopes of a step's inputs on to its outputs.
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

// Behind is how long what comes after a step takes, by how long each step does: the
// longest way to an output.
func (g *Graph) Behind(step int, takes func(step int) time.Duration) (longest time.Duration) {
	for _, out := range g.steps[step].outputs {
		for _, next := range g.tensors[out.tensor].readers {
			longest = max(longest, takes(next)+g.Behind(next, takes))
		}
	}
	return longest
}

// plan is what of a graph a request runs that asks for certain outputs.
type plan struct {
	outputs  []int            // tensors, in the ensemble's order
	needed   []bool           // by step
	requests [][]infer.Output // of needed steps
	uses     []int            // by tensor: needed steps that read it, and the response
}

// plan leaves out the steps that no wanted output depends on.
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

// need adds the step that makes a tensor, and those before it.
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

// fit returns a tensor's shape as its reader wants it, with a batch dimension or
// without: as in Triton a leading 1 comes or goes where the rest fits then.
func fit(shape, dims tensor.Shape, batches bool) tensor.Shape {
	switch {
	case batches && len(shape) == len(dims) && dims.Admits(shape):
		return shape.Prepend(1)
	case !batches && len(shape) == len(dims)+1 && shape[0] == 1 && dims.Admits(shape[1:]):
		return shape[1:]
	}
	return shape
}

// reshape turns a tensor's shape from one pattern to the other of an input or output. A
// shape that does not fit stays as it is.
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
