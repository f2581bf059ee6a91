package core_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// models are the composing models. Each returns its inputs as its outputs, through a scheduler of the test's.
type models struct {
	t    *testing.T
	h    *harness
	held atomic.Int64 // tensors that have not been released

	mu     sync.Mutex
	under  map[infer.RequestID]*infer.Request // submitted and not ended; guarded by mu
	most   map[string]int                     // maximum number in progress at once, by model; guarded by mu
	random *rand.Rand                         // guarded by mu
	wait   sync.WaitGroup
}

// number returns a counted tensor.
func (m *models) number(name string) infer.Tensor {
	m.held.Add(1)
	return infer.Tensor{
		Name: name, Datatype: tensor.Int32, Shape: tensor.Shape{1},
		Data: tensor.InBuffer(tensor.Wrap(make([]byte, 4), false, func(*tensor.Buffer) { m.held.Add(-1) }), 0, 4),
	}
}

func (m *models) submit(r *infer.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.under[r.Work.Request] = r
	n := 0
	for _, other := range m.under {
		if other.Model == r.Model {
			n++
		}
	}
	m.most[r.Model.Name] = max(m.most[r.Model.Name], n)
	if r.Deadline != 0 && m.h.Now() > r.Deadline {
		m.t.Errorf("model %s got a request that was too late", r.Model.Name)
	}
	work, pause, fails := r.Work, time.Duration(m.random.IntN(300))*time.Microsecond, m.random.IntN(10) == 0
	m.wait.Add(1)
	time.AfterFunc(pause, func() {
		defer m.wait.Done()
		p := &infer.Response{Work: work, Final: true, Outputs: []infer.Tensor{m.number("y")}}
		if fails {
			p.Release()
			p = infer.Fail(work, errs.New(errs.Bug, "it fails"))
		}
		m.end(work.Request)
		m.h.table.Respond(p)
	})
	return nil
}

func (m *models) end(id infer.RequestID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.under[id]; r != nil {
		delete(m.under, id)
		r.Release()
	}
}

// composed returns a gateway with an ensemble of two branches, whose steps may share the executions of equal
// requests.
func composed(t *testing.T, mostInFlight int, shared bool) (*models, *core.Version) {
	t.Helper()
	config := func(inputs ...string) *modelconfig.Config {
		c := &modelconfig.Config{Shared: shared, Outputs: []modelconfig.IO{io("y", tensor.Int32, 1)}}
		for _, name := range inputs {
			c.Inputs = append(c.Inputs, io(name, tensor.Int32, 1))
		}
		return c
	}
	both := config("x")
	both.Shared = false
	of := func(name string, inputs ...string) *core.Model {
		v := ready(name, config(inputs...))
		v.Content = name
		return &core.Model{Name: name, Versions: []*core.Version{v}}
	}
	step := func(model, output string, inputs map[string]string) modelconfig.Step {
		return modelconfig.Step{Model: model, Version: -1, Inputs: inputs, Outputs: map[string]string{"y": output}}
	}
	both.Ensemble = &modelconfig.Ensemble{MaxInFlight: mostInFlight, Steps: []modelconfig.Step{
		step("join", "y", map[string]string{"a": "left", "b": "right"}), step("one", "left", map[string]string{"x": "x"}), step("one", "right", map[string]string{"x": "x"}),
	}}
	m := &models{t: t, under: make(map[infer.RequestID]*infer.Request), most: make(map[string]int), random: rand.New(rand.NewPCG(1, 2))}
	m.h = newGateway(t, &core.Model{Name: "both", Versions: []*core.Version{ready("both", both)}}, of("one", "x"), of("join", "a", "b"))
	m.h.submit = m.submit
	m.h.cancel = m.end
	v, err := m.h.Snapshot().Resolve("both", "")
	if err != nil {
		t.Fatal(err)
	}
	return m, v
}

// ask sends a request, which may be canceled at a random time.
func (m *models) ask(v *core.Version) error {
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	r := m.h.NewRequest(v)
	r.Inputs = []infer.Tensor{m.number("x")}
	m.mu.Lock()
	if m.random.IntN(4) == 0 {
		defer time.AfterFunc(time.Duration(m.random.IntN(500))*time.Microsecond, cancel).Stop()
	}
	m.mu.Unlock()
	p, _, err := m.h.Infer(ctx, v, r)
	if err != nil {
		return err
	}
	defer p.Release()
	if !p.Final || len(p.Outputs) != 1 || p.Outputs[0].Name != "y" {
		m.t.Errorf("the response is %+v", p)
	}
	return nil
}

// Whatever fails or is canceled, each request ends, nothing is retained, and no step exceeds its maximum number
// of concurrent executions.
func TestEnsemblesLeaveNothingBehind(t *testing.T) {
	for _, tt := range []struct {
		most   int
		shared bool
	}{{0, false}, {1, false}, {3, false}, {0, true}, {3, true}} {
		t.Run(fmt.Sprintf("at most %d, shared %v", tt.most, tt.shared), func(t *testing.T) {
			most := tt.most
			m, v := composed(t, most, tt.shared)
			outcomes := make(map[errs.Reason]int)
			var mu sync.Mutex
			var wait sync.WaitGroup
			for range 8 {
				wait.Go(func() {
					for range 60 {
						err := m.ask(v)
						mu.Lock()
						outcomes[errs.Of(err)]++
						mu.Unlock()
						if err != nil && errs.Of(err) == errs.Bug && errs.From(err).Msg != "in ensemble 'both', it fails" {
							t.Errorf("a step's failure is told as %v", err)
						}
					}
				})
			}
			wait.Wait()
			m.wait.Wait()
			if n := outcomes[""] + outcomes[errs.Bug] + outcomes[errs.Canceled]; n != 8*60 || outcomes[""] == 0 || outcomes[errs.Bug] == 0 || outcomes[errs.Canceled] == 0 {
				t.Errorf("outcomes are %v", outcomes)
			}
			if n := m.h.InFlight(); n != 0 {
				t.Errorf("%d requests are in flight", n)
			}
			for late := time.Now().Add(time.Minute); m.held.Load() != 0; runtime.Gosched() { // shared responses are copied in the background
				if time.Now().After(late) {
					t.Fatalf("%d tensors are kept", m.held.Load())
				}
			}
			if one, join := m.most["one"], m.most["join"]; most > 0 && (one > 2*most || join > most) {
				t.Errorf("%d and %d executions were under way at once of two steps and of one", one, join)
			}
			for attempt := 0; ; attempt++ { // no slot of a step was lost
				if err := m.ask(v); err == nil {
					break
				} else if attempt == 1000 {
					t.Fatal(err)
				}
			}
		})
	}
}

// The versions that execute an ensemble are not given up while a request has steps to come.
func TestRequestsOfSupersededCompositionsAreWaitedFor(t *testing.T) {
	m, v := composed(t, 0, false)
	held := make(chan *infer.Request, 3)
	m.h.submit = func(r *infer.Request) error { held <- r; return nil }
	respond := func() {
		r := <-held
		m.h.table.Respond(&infer.Response{Work: r.Work, Final: true, Outputs: []infer.Tensor{m.number("y")}})
		r.Release()
	}
	ended := make(chan error)
	go func() {
		r := m.h.NewRequest(v)
		r.Inputs = []infer.Tensor{m.number("x")}
		p, _, err := m.h.Infer(t.Context(), v, r)
		if err == nil {
			p.Release()
		}
		ended <- err
	}()
	respond() // the request is in progress
	if m.h.Superseded() != nil {
		t.Error("what is current is superseded")
	}
	models := m.h.Snapshot().Models()
	next := make([]*core.Model, len(models))
	for i, model := range models {
		of := *model
		of.Versions = []*core.Version{ready(model.Name, model.Versions[0].Config)}
		if next[i] = &of; model.Name == "join" {
			of.Versions[0].Ref.Generation = 2
		}
	}
	m.h.Update(core.NewSnapshot(6, true, next))
	superseded := m.h.Superseded()
	if superseded == nil {
		t.Fatal("the request has a step to come of what was replaced, and nobody is told")
	}
	select {
	case <-superseded:
		t.Error("the request's end is told before it")
	default:
	}
	respond()
	respond()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-superseded
	if m.h.Superseded() != nil || m.held.Load() != 0 {
		t.Errorf("after its end the request is waited for, or %d tensors are kept", m.held.Load())
	}
}

// A step inherits from its request: its tenant pays for it, it shares devices accordingly, and it is given up
// when the request would be too late.
func TestStepsInheritFromTheirRequest(t *testing.T) {
	m, v := composed(t, 0, false)
	steps := make(chan infer.Request, 3)
	m.h.submit = func(r *infer.Request) error {
		steps <- *r
		go func() {
			work := r.Work
			r.Release()
			m.h.table.Respond(&infer.Response{Work: work, Final: true, Outputs: []infer.Tensor{m.number("y")}})
		}()
		return nil
	}
	r := m.h.NewRequest(v)
	r.Inputs = []infer.Tensor{m.number("x")}
	r.ID, r.Tenant, r.CostClass, r.Priority, r.Trace = "7", "acme", "heavy", 3, "00-trace"
	r.Share = infer.Share{Band: 2, Minimum: 50, Weight: 4000}
	r.Timeout, r.Deadline = time.Hour, m.h.Now().Add(time.Hour)
	want := *r
	p, _, err := m.h.Infer(t.Context(), v, r)
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	close(steps)
	n := 0
	for got := range steps {
		n++
		if got.ID != want.ID || got.Tenant != want.Tenant || got.CostClass != want.CostClass || got.Priority != want.Priority || got.Trace != want.Trace || got.Share != want.Share || got.Timeout != want.Timeout {
			t.Errorf("the step %s has %+v", got.Model.Name, got)
		}
		if got.Deadline > want.Deadline || got.Deadline < want.Deadline.Add(-time.Minute) {
			t.Errorf("the step %s has the deadline %v, its request %v", got.Model.Name, got.Deadline, want.Deadline)
		}
	}
	if n != 3 {
		t.Errorf("%d steps", n)
	}
}
