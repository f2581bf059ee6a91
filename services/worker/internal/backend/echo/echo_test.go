package echo_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/echo"
)

// batch keeps what an instance does with it.
type batch struct {
	mu        sync.Mutex
	ended     chan bool // gets a value with Done
	requests  []*infer.Request
	canceled  []bool
	stop      func()
	responses []*infer.Response // the last of each request
	given     []string
	marks     []string
	called    []*infer.Call
	parents   []int
	answer    func(*infer.Call, func(*infer.Response)) // to calls
}

func (b *batch) Call(i int, c *infer.Call, receive func(*infer.Response)) func() {
	b.mu.Lock()
	b.called, b.parents = append(b.called, c), append(b.parents, i)
	b.mu.Unlock()
	go b.answer(c, receive)
	return func() {}
}

func (b *batch) Requests() []*infer.Request { return b.requests }

func (b *batch) BatchSize() (n int64) {
	for _, r := range b.requests {
		n += r.BatchSize
	}
	return n
}

func (b *batch) Respond(i int, r *infer.Response) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.responses[i] = r
	b.given = append(b.given, fmt.Sprintf("%d: %d outputs, final %t", i, len(r.Outputs), r.Final))
}

func (b *batch) Room(int) <-chan struct{} {
	open := make(chan struct{})
	close(open)
	return open
}

func (b *batch) Canceled(i int) bool    { return b.canceled[i] }
func (b *batch) OnCancel(stop func())   { b.stop = stop }
func (b *batch) OnCancelEach(func(int)) {}
func (b *batch) GiveBack(err error)     { panic(err) }
func (b *batch) InputDone()             { b.marks = append(b.marks, "input") }
func (b *batch) InferDone()             { b.marks = append(b.marks, "infer") }
func (b *batch) Executed()              { b.marks = append(b.marks, "executed") }
func (*batch) Free()                    {}
func (b *batch) Again(i int) bool {
	b.given = append(b.given, fmt.Sprintf("%d: again", i))
	return true
}
func (b *batch) Done() { b.marks = append(b.marks, "done"); b.ended <- true }

func newBatch(requests ...*infer.Request) *batch {
	return &batch{ended: make(chan bool, 1), requests: requests, canceled: make([]bool, len(requests)), responses: make([]*infer.Response, len(requests))}
}

func config(parameters map[string]string) *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", MaxBatchSize: 8, Parameters: parameters,
		Inputs:  []modelconfig.IO{{Name: "a", Datatype: tensor.FP32, Dims: tensor.Shape{2}}, {Name: "b", Datatype: tensor.Bytes, Dims: tensor.Shape{-1}}},
		Outputs: []modelconfig.IO{{Name: "c", Datatype: tensor.FP32, Dims: tensor.Shape{2}}, {Name: "d", Datatype: tensor.Bytes, Dims: tensor.Shape{-1}}},
	}
}

func open(t *testing.T, b *echo.Backend, c *modelconfig.Config) backend.Instance {
	t.Helper()
	return openOn(t, b, c, modelconfig.KindCPU)
}

func openOn(t *testing.T, b *echo.Backend, c *modelconfig.Config, kind modelconfig.DeviceKind) backend.Instance {
	t.Helper()
	m, err := b.Load(t.Context(), backend.Version{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	in, err := m.NewInstance(t.Context(), backend.InstanceSpec{Kind: kind})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func input(name string, d tensor.Datatype, shape tensor.Shape, data string, freed *int) infer.Tensor {
	b := tensor.Wrap([]byte(data), false, func(*tensor.Buffer) { *freed++ })
	return infer.Tensor{Name: name, Datatype: d, Shape: shape, Data: tensor.InBuffer(b, 0, int64(len(data)))}
}

func TestOutputsAreTheInputsOfTheirPosition(t *testing.T) {
	freed := 0
	r := &infer.Request{BatchSize: 1, Inputs: []infer.Tensor{
		input("b", tensor.Bytes, tensor.Shape{1, 1}, "\x01\x00\x00\x00x", &freed),
		input("a", tensor.FP32, tensor.Shape{1, 2}, "12345678", &freed),
	}}
	b := newBatch(r, &infer.Request{BatchSize: 1, Inputs: r.Inputs, Outputs: []infer.Output{{Name: "d"}}})
	open(t, new(echo.Backend), config(nil)).Execute(b)
	if diff := cmp.Diff([]string{"input", "executed", "infer", "done"}, b.marks); diff != "" {
		t.Error(diff)
	}
	r.Release()
	if freed != 0 {
		t.Fatal("outputs hold no reference on their bytes")
	}
	got := b.responses[0].Outputs
	if len(got) != 2 || got[0].Name != "c" || !got[0].Shape.Equal(tensor.Shape{1, 2}) || got[1].Name != "d" || !b.responses[0].Final {
		t.Errorf("outputs %+v", got)
	}
	if data, err := got[0].Data.Bytes(); string(data) != "12345678" || err != nil {
		t.Errorf("output c is %q, %v", data, err)
	}
	if only := b.responses[1].Outputs; len(only) != 1 || only[0].Name != "d" {
		t.Errorf("outputs %+v, want d alone", only)
	}
	b.responses[0].Release()
	b.responses[1].Release()
	if freed != 2 {
		t.Errorf("%d buffers freed, want 2", freed)
	}
}

func TestExecutionTime(t *testing.T) {
	own := map[string]string{"execute_us": "1500", "execute_us_per_row": "20", "gpu.execute_us": "100"}
	tests := map[string]struct {
		kind       modelconfig.DeviceKind
		parameters map[string]string
		want       time.Duration
	}{
		"by rows":                           {modelconfig.KindCPU, own, 1600 * time.Microsecond},
		"of a GPU, as far as it has others": {modelconfig.KindGPU, own, 200 * time.Microsecond},
		"of a GPU without others":           {modelconfig.KindGPU, map[string]string{"execute_us": "7"}, 7 * time.Microsecond},
		"of a GPU alone":                    {modelconfig.KindCPU, map[string]string{"gpu.execute_us_per_row": "7"}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var slept time.Duration
			b := &echo.Backend{Sleep: func(d time.Duration, _ <-chan struct{}) { slept = d }}
			in := openOn(t, b, config(tt.parameters), tt.kind)
			in.Execute(newBatch(&infer.Request{BatchSize: 2}, &infer.Request{BatchSize: 3}))
			if slept != tt.want {
				t.Errorf("slept %v for 5 rows, want %v", slept, tt.want)
			}
		})
	}
}

func TestCanceledRequestsAndBatches(t *testing.T) {
	var in backend.Instance
	next := newBatch(&infer.Request{})
	first := newBatch(&infer.Request{}, &infer.Request{})
	batches := []*batch{first, next}
	b := &echo.Backend{Sleep: func(_ time.Duration, stop <-chan struct{}) {
		if batches[0] == first {
			first.canceled[1] = true
			first.stop()
			<-stop
			first.stop() // again, too late
			return
		}
		select {
		case <-stop:
			t.Error("the stop of one batch met the next")
		default:
		}
	}}
	in = open(t, b, config(map[string]string{"execute_us": "1"}))
	in.Execute(first)
	batches = batches[1:]
	in.Execute(next)
	if err := first.responses[1].Err; first.responses[0].Err != nil || errs.Of(err) != errs.Canceled {
		t.Errorf("canceled request ended with %v, the other with %v", err, first.responses[0].Err)
	}
}

func TestDecoupledModelsGiveAsManyResponsesAsTheParameterSays(t *testing.T) {
	for text, want := range map[string][]string{
		"0": {"0: 0 outputs, final true", "1: 0 outputs, final true"},
		"1": {"0: 1 outputs, final true", "1: 1 outputs, final true"},
		"2": {"0: 1 outputs, final false", "0: 1 outputs, final true", "1: 1 outputs, final false", "1: 1 outputs, final true"},
	} {
		c := config(map[string]string{"responses": text})
		c.Decoupled = true
		freed := 0
		request := func() *infer.Request {
			return &infer.Request{Inputs: []infer.Tensor{input("a", tensor.FP32, tensor.Shape{2}, "12345678", &freed)}}
		}
		b := newBatch(request(), request())
		open(t, new(echo.Backend), c).Execute(b)
		<-b.ended
		slices.Sort(b.given) // those of a request stay in order
		if diff := cmp.Diff(want, b.given); diff != "" {
			t.Errorf("%s responses (-want +got):\n%s", text, diff)
		}
	}
}

// The model that is called gives output d, after one that it replaces.
func TestModelsThatCallAnotherAnswerWithItsOutputs(t *testing.T) {
	for name, tt := range map[string]struct {
		responses string
		fails     bool
		parents   []int
		want      []string
	}{
		"once":              {"1", false, []int{-1, -1}, []string{"0: 2 outputs, final true", "1: 2 outputs, final true"}},
		"several responses": {"2", false, []int{0, 1}, []string{"0: 2 outputs, final false", "0: 2 outputs, final true", "1: 2 outputs, final false", "1: 2 outputs, final true"}},
		"a call that fails": {"1", true, []int{-1, -1}, []string{"0: 0 outputs, final true", "1: 0 outputs, final true"}},
		"several, failed":   {"2", true, []int{0, 1}, []string{"0: 0 outputs, final false", "1: 0 outputs, final false"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(map[string]string{"responses": tt.responses, "calls": "other"})
			c.Decoupled = true
			freed, made := 0, 0
			tensorOf := func(name string) infer.Tensor {
				made++
				return input(name, tensor.Bytes, tensor.Shape{1}, name, &freed)
			}
			request := func(id string) *infer.Request {
				return &infer.Request{ID: id, Sequence: infer.Sequence{Key: id}, Inputs: []infer.Tensor{tensorOf("a"), tensorOf("b")}}
			}
			b := newBatch(request("x"), request("y"))
			b.answer = func(c *infer.Call, receive func(*infer.Response)) {
				c.Release() // before the end, as the test counts once all have ended
				b.mu.Lock()
				defer b.mu.Unlock()
				receive(&infer.Response{Outputs: []infer.Tensor{tensorOf("d")}})
				if tt.fails {
					receive(&infer.Response{Final: true, Err: errs.New(errs.ExecutionFailed, "no")})
					return
				}
				receive(&infer.Response{Outputs: []infer.Tensor{tensorOf("d")}})
				receive(&infer.Response{Final: true})
			}
			open(t, new(echo.Backend), c).Execute(b)
			<-b.ended
			slices.Sort(b.given) // those of a request stay in order
			if diff := cmp.Diff(tt.want, b.given); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			slices.Sort(b.parents)
			if diff := cmp.Diff(tt.parents, b.parents); diff != "" {
				t.Errorf("parents (-want +got):\n%s", diff)
			}
			for _, c := range b.called {
				if c.Model != "other" || c.Single || c.ID != c.Sequence.Key {
					t.Errorf("called %+v", c)
				}
			}
			for i, r := range b.responses {
				if data, err := last(r.Outputs); !tt.fails && (err != nil || data != "d") {
					t.Errorf("output d is %q, %v, want that of the call", data, err)
				}
				if tt.fails && errs.Of(r.Err) != errs.ExecutionFailed {
					t.Errorf("request %d ended with %v", i, r.Err)
				}
				r.Release()
				b.requests[i].Release()
			}
			if tt.responses == "1" && freed != made {
				t.Errorf("%d of %d buffers were freed", freed, made)
			}
		})
	}
}

func last(tensors []infer.Tensor) (string, error) {
	if len(tensors) == 0 {
		return "", nil
	}
	data, err := tensors[len(tensors)-1].Data.Bytes()
	return string(data), err
}

// A request runs again until its last iteration; a decoupled model gives a response in
// each.
func TestIterations(t *testing.T) {
	for decoupled, want := range map[bool][]string{
		false: {"0: again", "1: 1 outputs, final true"},
		true:  {"0: 1 outputs, final false", "0: again", "1: 1 outputs, final true"},
	} {
		c := config(map[string]string{"iterations": "3"})
		c.Decoupled, c.Sequences = decoupled, &modelconfig.SequenceBatching{Iterative: true}
		freed := 0
		request := func(iteration uint32) *infer.Request {
			return &infer.Request{
				Work:   infer.Work{Iteration: iteration},
				Inputs: []infer.Tensor{input("a", tensor.FP32, tensor.Shape{2}, "12345678", &freed)},
			}
		}
		b := newBatch(request(1), request(2))
		open(t, new(echo.Backend), c).Execute(b)
		if diff := cmp.Diff(want, b.given); diff != "" {
			t.Errorf("decoupled %t (-want +got):\n%s", decoupled, diff)
		}
	}
}

func TestStoppedRunDoesNotCount(t *testing.T) {
	only := newBatch(&infer.Request{})
	b := &echo.Backend{Sleep: func(time.Duration, <-chan struct{}) { only.canceled[0] = true }}
	open(t, b, config(map[string]string{"execute_us": "1"})).Execute(only)
	if diff := cmp.Diff([]string{"input", "infer", "done"}, only.marks); diff != "" {
		t.Error(diff)
	}
}

func TestSleepCanBeStopped(*testing.T) {
	stop := make(chan struct{}, 1)
	stop <- struct{}{}
	echo.Sleep(time.Hour, stop) // the test would not end
	echo.Sleep(time.Nanosecond, nil)
}

func TestLoadRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*modelconfig.Config)
		want string
	}{
		"more outputs than inputs":          {func(c *modelconfig.Config) { c.Inputs = c.Inputs[:1] }, "output 'd' has no input in its position"},
		"another datatype":                  {func(c *modelconfig.Config) { c.Outputs[0].Datatype = tensor.Int8 }, "output 'c' is INT8[2], but input 'a' in its position is FP32[2]"},
		"no number for GPUs":                {func(c *modelconfig.Config) { c.Parameters = map[string]string{"gpu.execute_us": "x"} }, `parameter gpu.execute_us is "x"`},
		"no number":                         {func(c *modelconfig.Config) { c.Parameters = map[string]string{"execute_us": "1ms"} }, `parameter execute_us is "1ms"`},
		"no number of responses":            {func(c *modelconfig.Config) { c.Decoupled, c.Parameters = true, map[string]string{"responses": "x"} }, `parameter responses is "x"`},
		"several of a model that gives one": {func(c *modelconfig.Config) { c.Parameters = map[string]string{"responses": "2"} }, "parameter responses is 2: a model that is not decoupled gives one"},
		"no number of iterations":           {func(c *modelconfig.Config) { c.Parameters = map[string]string{"iterations": "0"} }, `parameter iterations is "0"`},
		"iterations of a model without":     {func(c *modelconfig.Config) { c.Parameters = map[string]string{"iterations": "2"} }, "parameter iterations is 2: a model without"},
		"iterations with several responses": {func(c *modelconfig.Config) {
			c.Decoupled, c.Sequences = true, &modelconfig.SequenceBatching{Iterative: true}
			c.Parameters = map[string]string{"iterations": "2", "responses": "2"}
		}, "parameter responses cannot be given with iterations"},
		"negative": {func(c *modelconfig.Config) { c.Parameters = map[string]string{"execute_us_per_row": "-1"} }, "execute_us_per_row"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config(nil)
			tt.edit(c)
			_, err := new(echo.Backend).Load(t.Context(), backend.Version{Config: c})
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v, want load_failed with %q", err, tt.want)
			}
		})
	}
}
