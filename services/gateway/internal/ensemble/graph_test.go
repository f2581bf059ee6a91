package ensemble_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/ensemble"
)

// held counts tensors that are not released.
type held struct{ buffers int }

// number makes a tensor of one number.
func (h *held) number(name string, v uint64) infer.Tensor {
	h.buffers++
	data := binary.LittleEndian.AppendUint64(nil, v)
	return infer.Tensor{
		Name: name, Datatype: tensor.Int64, Shape: tensor.Shape{1},
		Data: tensor.InBuffer(tensor.Wrap(data, false, func(*tensor.Buffer) { h.buffers-- }), 0, 8),
	}
}

func numberOf(t infer.Tensor) uint64 {
	b, err := t.Data.Bytes()
	if err != nil {
		panic(err)
	}
	return binary.LittleEndian.Uint64(b)
}

func io(name string) modelconfig.IO {
	return modelconfig.IO{Name: name, Datatype: tensor.Int64, Dims: tensor.Shape{1}}
}

// world is a random ensemble, whose models give a hash of what they get.
type world struct {
	held    held
	config  *modelconfig.Config
	models  []*modelconfig.Config
	scope   map[string]int  // decoupled step by tensor; -1
	tensors []string        // in an order in which they can be made
	counts  []int           // responses of decoupled steps
	ends    []bool          // whether the last response of decoupled steps is the end, too
	omits   map[string]bool // outputs that models leave out, by tensor
}

func draw(t *rapid.T) *world {
	w := &world{config: &modelconfig.Config{Name: "e", Ensemble: &modelconfig.Ensemble{}}, scope: map[string]int{}, omits: map[string]bool{}}
	for i := range rapid.IntRange(1, 2).Draw(t, "inputs") {
		name := fmt.Sprint("in", i)
		w.config.Inputs = append(w.config.Inputs, io(name))
		w.tensors, w.scope[name] = append(w.tensors, name), -1
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "steps") {
		w.drawStep(t, i)
	}
	scope := rapid.SampledFrom(w.tensors).Draw(t, "scope")
	for _, name := range w.tensors {
		if w.scope[name] == -1 || w.scope[name] == w.scope[scope] {
			if rapid.Bool().Draw(t, "is an output") || name == scope {
				w.config.Outputs = append(w.config.Outputs, io(name))
			}
		}
	}
	for i := range w.models {
		w.config.Decoupled = w.config.Decoupled || w.models[i].Decoupled
	}
	// Steps may stand in any order.
	order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
		for i := range w.models {
			if !yield(i) {
				return
			}
		}
	})).Draw(t, "order")
	models, steps := make([]*modelconfig.Config, len(order)), make([]modelconfig.Step, len(order))
	counts, ends := make([]int, len(order)), make([]bool, len(order))
	for to, from := range order {
		models[to], steps[to], counts[to], ends[to] = w.models[from], w.config.Ensemble.Steps[from], w.counts[from], w.ends[from]
	}
	w.models, w.config.Ensemble.Steps, w.counts, w.ends = models, steps, counts, ends
	return w
}

func (w *world) drawStep(t *rapid.T, i int) {
	model := &modelconfig.Config{Name: fmt.Sprint("m", i), Decoupled: rapid.IntRange(0, 3).Draw(t, "decoupled") == 0}
	step := modelconfig.Step{Model: model.Name, Version: -1, Inputs: map[string]string{}, Outputs: map[string]string{}}
	scope := -1
	for n := range rapid.IntRange(1, 3).Draw(t, "reads") {
		from := rapid.SampledFrom(w.tensors).Draw(t, "from")
		if of := w.scope[from]; of != -1 && scope != -1 && of != scope {
			continue
		} else if of != -1 {
			scope = of
		}
		in := io(strconv.Itoa(n))
		in.Optional = rapid.Bool().Draw(t, "optional")
		model.Inputs = append(model.Inputs, in)
		step.Inputs[in.Name] = from
	}
	if model.Decoupled {
		scope = i
	}
	for n := range rapid.IntRange(1, 2).Draw(t, "makes") {
		name := fmt.Sprint("t", i, "_", n)
		model.Outputs = append(model.Outputs, io(strconv.Itoa(n)))
		step.Outputs[strconv.Itoa(n)] = name
		w.tensors, w.scope[name] = append(w.tensors, name), scope
		w.omits[name] = rapid.IntRange(0, 7).Draw(t, "omits") == 0
	}
	w.models, w.config.Ensemble.Steps = append(w.models, model), append(w.config.Ensemble.Steps, step)
	w.counts = append(w.counts, rapid.IntRange(0, 3).Draw(t, "responses"))
	w.ends = append(w.ends, rapid.Bool().Draw(t, "ends"))
}

// give is what a model's output is for the given inputs; index counts responses.
func give(model, output string, inputs []infer.Tensor, index int) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, model, output, index)
	for _, in := range inputs {
		fmt.Fprint(h, in.Name, numberOf(in))
	}
	return h.Sum64()
}

// respond is a model's response.
func (w *world) respond(e *ensemble.Execution, index int) *infer.Response {
	step := w.config.Ensemble.Steps[e.Step]
	p := &infer.Response{}
	for _, out := range e.Outputs {
		if !w.omits[step.Outputs[out.Name]] {
			p.Outputs = append(p.Outputs, w.held.number(out.Name, give(step.Model, out.Name, e.Inputs, index)))
		}
	}
	return p
}

// outcome is what the ensemble's responses say, and what its steps were given.
type outcome struct {
	responses  []string
	executions []string
}

// run executes steps and has them respond in an order of choose's.
func (w *world) run(t *rapid.T, g *ensemble.Graph, choose func(n int) int) outcome {
	var of outcome
	request := &infer.Request{}
	for _, in := range w.config.Inputs {
		request.Inputs = append(request.Inputs, w.held.number(in.Name, uint64(len(in.Name))))
	}
	run := g.Begin(request)
	type underway struct {
		execution *ensemble.Execution
		index     int
	}
	var executions []*underway
	for {
		for e := run.Next(); e != nil; e = run.Next() {
			of.executions = append(of.executions, fmt.Sprint(e.Step, give("", "", e.Inputs, 0)))
			executions = append(executions, &underway{execution: e})
		}
		if p := run.Response(); p.Response != nil {
			w.check(t, p)
			if len(p.Outputs)+len(p.Missing) > 0 {
				of.responses = append(of.responses, text(p))
			}
			final := p.Final
			p.Release()
			if final {
				break
			}
			continue
		}
		if len(executions) == 0 {
			t.Fatal("nothing is under way, and there is no response")
		}
		at := choose(len(executions))
		u := executions[at]
		p := &infer.Response{Final: true}
		if step := u.execution.Step; !w.models[step].Decoupled {
			p = w.respond(u.execution, 0)
			p.Final = true
		} else if u.index < w.counts[step] {
			p = w.respond(u.execution, u.index)
			u.index++
			p.Final = w.ends[step] && u.index == w.counts[step] && len(p.Outputs) > 0
		}
		if p.Final {
			executions = slices.Delete(executions, at, at+1)
			for i := range u.execution.Inputs {
				u.execution.Inputs[i].Data.Release()
			}
		}
		run.Respond(u.execution, p)
	}
	if len(executions) > 0 {
		t.Fatalf("%d executions are under way after the end", len(executions))
	}
	if p := run.Response(); p.Response != nil {
		t.Fatalf("after the end comes %v", p)
	}
	run.Close()
	request.Release()
	slices.Sort(of.responses)
	slices.Sort(of.executions)
	return of
}

// check requires that a response has the outputs, and names those that it lacks.
func (w *world) check(t *rapid.T, p ensemble.Response) {
	if p.Err != nil {
		t.Fatalf("the run failed: %v", p.Err)
	}
	for _, out := range p.Outputs {
		if w.omits[out.Name] {
			t.Fatalf("the response has %s, which no step gave", out.Name)
		}
	}
	for _, name := range p.Missing {
		if !w.omits[name] {
			t.Fatalf("the response lacks %s, which a step gave", name)
		}
	}
	all := len(p.Outputs) + len(p.Missing)
	if endOnly := w.config.Decoupled && p.Final && all == 0; all != len(w.config.Outputs) && !endOnly {
		t.Fatalf("a response has %d outputs and lacks %d, of %d", len(p.Outputs), len(p.Missing), len(w.config.Outputs))
	}
}

func text(p ensemble.Response) string {
	var s string
	for _, out := range p.Outputs {
		s += fmt.Sprint(out.Name, "=", numberOf(out), " ")
	}
	for _, name := range p.Missing {
		s += name + " is missing "
	}
	return s
}

// Whatever the order in which steps respond, each is executed once for the same
// inputs, the responses are the same, and nothing is kept.
func TestOrderOfResponsesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t)
		g, err := ensemble.New(w.config, w.models)
		if err != nil {
			t.Fatal(err)
		}
		inOrder := w.run(t, g, func(int) int { return 0 })
		anyOrder := w.run(t, g, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "next") })
		if !slices.Equal(inOrder.executions, anyOrder.executions) {
			t.Fatalf("steps ran for %v, in another order for %v", inOrder.executions, anyOrder.executions)
		}
		if !slices.Equal(inOrder.responses, anyOrder.responses) {
			t.Fatalf("responses are %v, in another order %v", inOrder.responses, anyOrder.responses)
		}
		if w.held.buffers != 0 {
			t.Fatalf("%d tensors are kept", w.held.buffers)
		}
	})
}

// An output that does not iterate is in every response, also where nothing reads what
// does, and whatever comes first.
func TestOutputsThatDoNotIterateAreInEveryResponse(t *testing.T) {
	config := &modelconfig.Config{
		Name: "e", Decoupled: true, Inputs: []modelconfig.IO{io("in")}, Outputs: []modelconfig.IO{io("once"), io("each")},
		Ensemble: &modelconfig.Ensemble{Steps: []modelconfig.Step{
			{Model: "one", Inputs: map[string]string{"0": "in"}, Outputs: map[string]string{"0": "once"}},
			{Model: "many", Inputs: map[string]string{"0": "once"}, Outputs: map[string]string{"0": "each"}},
		}},
	}
	model := func(name string, decoupled bool) *modelconfig.Config {
		return &modelconfig.Config{Name: name, Decoupled: decoupled, Inputs: []modelconfig.IO{io("0")}, Outputs: []modelconfig.IO{io("0")}}
	}
	g, err := ensemble.New(config, []*modelconfig.Config{model("one", false), model("many", true)})
	if err != nil {
		t.Fatal(err)
	}
	var held held
	run := g.Begin(&infer.Request{Inputs: []infer.Tensor{held.number("in", 1)}})
	respond := func(e *ensemble.Execution, v uint64) {
		run.Respond(e, &infer.Response{Outputs: []infer.Tensor{held.number("0", v)}})
	}
	one := run.Next()
	run.Respond(one, &infer.Response{Final: true, Outputs: []infer.Tensor{held.number("0", 7)}})
	many := run.Next()
	for v := range uint64(3) {
		respond(many, v)
		p := run.Response()
		if p.Response == nil || text(p) != fmt.Sprint("once=7 each=", v, " ") || p.Final {
			t.Fatalf("response %d is %v", v, p)
		}
		p.Release()
	}
	run.Respond(many, &infer.Response{Final: true})
	if p := run.Response(); p.Response == nil || !p.Final || len(p.Outputs) > 0 {
		t.Errorf("the end is %v", p)
	}
}
