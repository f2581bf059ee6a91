package identity_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/identity"
)

// batch keeps the responses to its requests. What it does not have is not called.
type batch struct {
	backend.Batch
	requests  []*infer.Request
	canceled  map[int]bool
	stop      func()
	responses []*infer.Response
	done      int
}

func newBatch(requests ...*infer.Request) *batch {
	return &batch{requests: requests, canceled: make(map[int]bool), responses: make([]*infer.Response, len(requests))}
}

func (b *batch) Requests() []*infer.Request       { return b.requests }
func (b *batch) Respond(i int, r *infer.Response) { b.responses[i] = r }
func (b *batch) Canceled(i int) bool              { return b.canceled[i] }
func (b *batch) OnCancel(stop func())             { b.stop = stop }
func (b *batch) OnCancelEach(func(int))           {}
func (*batch) InputDone()                         {}
func (*batch) InferDone()                         {}
func (*batch) Executed()                          {}
func (b *batch) Done()                            { b.done++ }

// config has a required input and an optional one.
func config() *modelconfig.Config {
	dims := tensor.Shape{-1, 2}
	return &modelconfig.Config{
		Name: "m", MaxBatchSize: 4, Parameters: map[string]string{},
		Inputs:  []modelconfig.IO{{Name: "INPUT0", Datatype: tensor.Bytes, Dims: tensor.Shape{1}}, {Name: "INPUT1", Datatype: tensor.FP16, Dims: dims, Optional: true}},
		Outputs: []modelconfig.IO{{Name: "OUTPUT1", Datatype: tensor.FP16, Dims: dims}, {Name: "OUTPUT0", Datatype: tensor.Bytes, Dims: tensor.Shape{1}}},
	}
}

func load(t *testing.T, c *modelconfig.Config) (backend.Model, error) {
	t.Helper()
	b, err := identity.Driver().Open(backend.Environment{Pool: tensor.NewPool(0)})
	if err != nil {
		t.Fatal(err)
	}
	return b.Load(t.Context(), backend.Version{Config: c})
}

func instances(t *testing.T, c *modelconfig.Config, count int) (all []backend.Instance) {
	t.Helper()
	m, err := load(t, c)
	if err != nil {
		t.Fatal(err)
	}
	for range count {
		in, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

// one is a request of two rows without the optional input.
func one(outputs ...infer.Output) *infer.Request {
	data := tensor.AppendBytes(tensor.AppendBytes(nil, "x"), "yz")
	return &infer.Request{BatchSize: 2, Outputs: outputs, Inputs: []infer.Tensor{
		{Name: "INPUT0", Datatype: tensor.Bytes, Shape: tensor.Shape{2, 1}, Data: tensor.InHeap(data)},
	}}
}

// told is what a response says of an output.
type told struct {
	Name, Data string
	Datatype   tensor.Datatype
	Shape      tensor.Shape
}

func outputs(t *testing.T, r *infer.Response) (list []told) {
	t.Helper()
	if r.Err != nil || !r.Final {
		t.Fatalf("%+v", r)
	}
	for _, o := range r.Outputs {
		data, err := o.Data.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, told{o.Name, string(data), o.Datatype, o.Shape})
	}
	r.Release()
	return list
}

func TestOutputsAreTheInputsOfTheirIndex(t *testing.T) {
	both := one()
	both.Inputs = append(both.Inputs, infer.Tensor{Name: "INPUT1", Datatype: tensor.FP16, Shape: tensor.Shape{2, 3, 2}, Data: tensor.InHeap([]byte("123456789012345678901234"))})
	b := newBatch(both, one(infer.Output{Name: "OUTPUT1"}), one(infer.Output{Name: "OUTPUT0"}))
	b.canceled[2] = true
	instances(t, config(), 1)[0].Execute(b)
	strings0 := told{"OUTPUT0", "\x01\x00\x00\x00x\x02\x00\x00\x00yz", tensor.Bytes, tensor.Shape{2, 1}}
	want := []infer.Parameter{{Key: "param0", Value: "an example string parameter"}, {Key: "param1", Value: int64(42)}, {Key: "param2", Value: false}}
	if d := cmp.Diff(want, b.responses[0].Parameters); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]told{{"OUTPUT1", "123456789012345678901234", tensor.FP16, tensor.Shape{2, 3, 2}}, strings0}, outputs(t, b.responses[0])); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]told{{"OUTPUT1", string(make([]byte, 8)), tensor.FP16, tensor.Shape{2, 1, 2}}}, outputs(t, b.responses[1])); d != "" {
		t.Errorf("an input that was left out: %s", d)
	}
	if errs.Of(b.responses[2].Err) != errs.Canceled || b.done != 1 {
		t.Errorf("a canceled request: %v, done %d times", b.responses[2].Err, b.done)
	}
}

func TestDelays(t *testing.T) {
	for name, tt := range map[string]struct {
		parameters map[string]string
		load       time.Duration
		executions []time.Duration // of the instances in their order
	}{
		"none":           {nil, 0, []time.Duration{0, 0, 0}},
		"of a batch":     {map[string]string{"execute_delay_ms": "7"}, 0, []time.Duration{7e6, 7e6, 7e6}},
		"by instances":   {map[string]string{"execute_delay_ms": "7", "instance_wise_delay_multiplier": "4"}, 0, []time.Duration{7e6, 28e6, 56e6}},
		"of a load":      {map[string]string{"creation_delay_sec": "3"}, 3 * time.Second, []time.Duration{0}},
		"multiple alone": {map[string]string{"instance_wise_delay_multiplier": "4"}, 0, []time.Duration{0, 0}},
		"beyond measure": {map[string]string{"execute_delay_ms": "4294967295", "instance_wise_delay_multiplier": "4294967295"}, 0, []time.Duration{4294967295e6}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, began := config(), time.Now()
				c.Parameters = tt.parameters
				all := instances(t, c, len(tt.executions))
				if took := time.Since(began); took != tt.load {
					t.Errorf("the load took %v, want %v", took, tt.load)
				}
				for i, in := range all {
					began = time.Now()
					in.Execute(newBatch(one()))
					if took := time.Since(began); took != tt.executions[i] {
						t.Errorf("instance %d took %v, want %v", i, took, tt.executions[i])
					}
				}
			})
		})
	}
}

func TestCancellationEndsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := config(), time.Now()
		c.Parameters["execute_delay_ms"], c.Parameters["instance_wise_delay_multiplier"] = "4294967295", "4294967295"
		in, b, done := instances(t, c, 2)[1], newBatch(one()), make(chan struct{})
		go func() {
			in.Execute(b)
			close(done)
		}()
		<-time.After(time.Millisecond)
		synctest.Wait()
		b.canceled[0] = true
		b.stop()
		<-done
		if took := time.Since(began); took != time.Millisecond || errs.Of(b.responses[0].Err) != errs.Canceled {
			t.Errorf("after %v: %v", took, b.responses[0].Err)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	for want, edit := range map[string]func(*modelconfig.Config){
		"model configuration must have equal input/output pairs":                   func(c *modelconfig.Config) { c.Inputs = c.Inputs[1:] },
		"expected input name to follow INPUT<index> pattern, got 'x'":              func(c *modelconfig.Config) { c.Inputs[0].Name = "x" },
		"expected output name to follow OUTPUT<index> pattern, got 'y'":            func(c *modelconfig.Config) { c.Outputs[0].Name = "y" },
		"expected input and output indices to match: there is no input INPUT2":     func(c *modelconfig.Config) { c.Outputs[0].Name = "OUTPUT2" },
		"expected input and output datatype to match, got TYPE_FP16 and TYPE_FP32": func(c *modelconfig.Config) { c.Outputs[0].Datatype = tensor.FP32 },
		"expected input and output shape to match, got [-1,2] and [3]":             func(c *modelconfig.Config) { c.Outputs[0].Dims = tensor.Shape{3} },
		`parameter execute_delay_ms is "-1": give a whole number`:                  func(c *modelconfig.Config) { c.Parameters["execute_delay_ms"] = "-1" },
		`parameter instance_wise_delay_multiplier is "x"`:                          func(c *modelconfig.Config) { c.Parameters["instance_wise_delay_multiplier"] = "x" },
		`parameter creation_delay_sec is ""`:                                       func(c *modelconfig.Config) { c.Parameters["creation_delay_sec"] = "" },
		"zeros for the optional input 'INPUT1' are more than 1073741824 bytes": func(c *modelconfig.Config) {
			c.Inputs[1].Dims, c.Outputs[0].Dims = tensor.Shape{1 << 28}, tensor.Shape{1 << 28}
		},
	} {
		c := config()
		edit(c)
		if _, err := load(t, c); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want load_failed with %q", err, want)
		}
	}
}
