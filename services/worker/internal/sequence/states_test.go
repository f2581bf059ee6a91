//go:build cgo

package sequence_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

// stateful configures an accumulator of two numbers.
func stateful(maxBatch int64) *modelconfig.Config {
	f, dims := tensor.FP32, tensor.Shape{2}
	return &modelconfig.Config{
		Name: "m", Backend: "onnxruntime", Filename: "model.onnx", MaxBatchSize: maxBatch,
		Inputs:  []modelconfig.IO{{Name: "INPUT0", Datatype: f, Dims: dims}},
		Outputs: []modelconfig.IO{{Name: "OUTPUT0", Datatype: f, Dims: dims}},
		Sequences: &modelconfig.SequenceBatching{
			Slots: int(max(maxBatch, 1)), MaxIdleMicros: 60_000_000,
			States: []modelconfig.SequenceState{{Input: "STATE_IN", Output: "STATE_OUT", Datatype: f, Dims: dims}},
		},
	}
}

// served is an instance on ONNX Runtime, whose memory is given back with the test.
type served struct {
	*sequence.Instance
	t     *testing.T
	c     *modelconfig.Config
	pool  *tensor.Pool
	bytes *atomic.Int64 // of states
	clock *clock
}

func serve(t *testing.T, model onnxmodel.Model, c *modelconfig.Config, files map[string][]byte) *served {
	t.Helper()
	s := &served{t: t, c: c, pool: tensor.NewPool(0), bytes: new(atomic.Int64), clock: &clock{now: 1}}
	engine, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: s.pool})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model.WriteFile(t, filepath.Join(dir, "1", "model.onnx"))
	for name, data := range files {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "initial_state"), 0o755), os.WriteFile(filepath.Join(dir, "initial_state", name), data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	v := backend.Version{Ref: infer.ModelRef{Name: "m", Version: 1}, Config: c, ModelDir: dir, Dir: filepath.Join(dir, "1")}
	m, err := sequence.Prepare(v, sequence.Deps{Pool: s.pool, Clock: s.clock, Held: func(n int64) { s.bytes.Add(n) }})
	if err != nil {
		t.Fatal(err)
	}
	v.Config = c.ForBackend()
	loaded, err := engine.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	in, err := loaded.NewInstance(t.Context(), backend.InstanceSpec{Name: "m_0_0", Kind: modelconfig.KindCPU})
	if err != nil {
		t.Fatal(err)
	}
	s.Instance = m.Instance(in)
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), loaded.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
		if n, mapped := s.bytes.Load(), s.pool.Stats().InUse; n != 0 || mapped != 0 {
			t.Errorf("states of %d bytes and mapped memory of %d are left", n, mapped)
		}
	})
	return s
}

// step runs a batch and shows its responses.
func (s *served) step(b *batch) (all []string) {
	s.t.Helper()
	s.Execute(b)
	for _, r := range b.responses {
		all = append(all, strings.Join(outputs(s.t, r), "; "))
	}
	return all
}

func (s *served) want(b *batch, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.step(b)); diff != "" {
		s.t.Error(diff)
	}
}

func (s *served) one(p infer.Slot, x ...float32) *batch { return new(batch).add(request(s.c, x...), p) }

func TestStatesGoFromRequestToRequest(t *testing.T) {
	s := serve(t, onnxmodel.Accumulator(tensor.FP32, "b", 2), stateful(4), nil)
	// Rows of slots, with an empty one between.
	s.want(new(batch).add(request(s.c, 1, 10), place(0, 1, "S")).add(request(s.c, 2, 20), place(2, 2, "S")),
		"OUTPUT0 FP32[1,2] [1 10]", "OUTPUT0 FP32[1,2] [2 20]")
	s.want(new(batch).add(request(s.c, 1, 1), place(2, 2, "")), "OUTPUT0 FP32[1,2] [3 21]")
	s.want(new(batch).add(request(s.c, 1, 1), place(0, 1, "")).add(request(s.c, 1, 1), place(1, 3, "S")).add(request(s.c, 0, 0), place(2, 2, "E")),
		"OUTPUT0 FP32[1,2] [2 11]", "OUTPUT0 FP32[1,2] [1 1]", "OUTPUT0 FP32[1,2] [3 21]")
	if n := s.bytes.Load(); n != 2*8 {
		t.Errorf("two sequences live, with states of %d bytes", n)
	}
	if got := s.step(s.one(place(2, 2, ""), 1, 1)); !strings.HasPrefix(got[0], "sequence_lost") {
		t.Errorf("after its end: %s", got)
	}
	s.want(s.one(place(0, 1, "S"), 7, 7), "OUTPUT0 FP32[1,2] [7 7]") // anew
	s.want(s.one(place(0, 4, "S"), 8, 8), "OUTPUT0 FP32[1,2] [8 8]") // in the place of another
	if got := s.step(s.one(place(0, 1, ""), 1, 1)); !strings.HasPrefix(got[0], "sequence_lost") {
		t.Errorf("after another has taken its slot: %s", got)
	}
}

func TestStatesOfSequencesThatWereIdleAreDropped(t *testing.T) {
	c := stateful(4)
	c.Sequences.MaxIdleMicros = 5_000_000
	s := serve(t, onnxmodel.Accumulator(tensor.FP32, "b", 2), c, nil)
	s.want(s.one(place(0, 1, "S"), 1, 1), "OUTPUT0 FP32[1,2] [1 1]")
	s.clock.now = s.clock.now.Add(8 * time.Second)
	s.want(s.one(place(1, 2, "S"), 1, 1), "OUTPUT0 FP32[1,2] [1 1]")
	s.clock.now = s.clock.now.Add(8 * time.Second)
	if list, n := s.Sequences(), s.bytes.Load(); len(list) != 1 || n != 8 {
		t.Errorf("the hello names %+v, with states of %d bytes", list, n)
	}
	if got := s.step(s.one(place(0, 1, ""), 1, 1)); !strings.HasPrefix(got[0], "sequence_lost") {
		t.Errorf("after a hello that did not name it: %s", got)
	}
	s.want(s.one(place(1, 2, ""), 1, 1), "OUTPUT0 FP32[1,2] [2 2]")
}

func TestStatesOfAModelWithoutBatches(t *testing.T) {
	s := serve(t, onnxmodel.Accumulator(tensor.FP32, 2), stateful(0), nil)
	s.want(s.one(place(0, 1, "S"), 1, 2), "OUTPUT0 FP32[2] [1 2]")
	s.want(s.one(place(0, 1, "E"), 1, 2), "OUTPUT0 FP32[2] [2 4]")
}

func TestStateOutputsThatAreOutputsAreGivenToo(t *testing.T) {
	c := stateful(4)
	c.Outputs = append(c.Outputs, modelconfig.IO{Name: "STATE_OUT", Datatype: tensor.FP32, Dims: tensor.Shape{2}})
	s := serve(t, onnxmodel.Accumulator(tensor.FP32, "b", 2), c, nil)
	s.want(s.one(place(0, 1, "S"), 1, 2), "OUTPUT0 FP32[1,2] [1 2]; STATE_OUT FP32[1,2] [1 2]")
	only := func(name string) *batch {
		b := s.one(place(0, 1, ""), 1, 2)
		b.requests[0].Outputs = []infer.Output{{Name: name}}
		return b
	}
	s.want(only("STATE_OUT"), "STATE_OUT FP32[1,2] [2 4]")
	s.want(only("OUTPUT0"), "OUTPUT0 FP32[1,2] [3 6]")
	s.want(s.one(place(0, 1, "E"), 0, 0), "OUTPUT0 FP32[1,2] [3 6]; STATE_OUT FP32[1,2] [3 6]")
}

// appending is a model whose state is all of its inputs since START.
func appending() (onnxmodel.Model, *modelconfig.Config) {
	m := onnxmodel.Accumulator(tensor.FP32, "b", "n")
	m.Graph.Nodes[0] = onnxmodel.Node{
		Op: "Concat", Inputs: []string{"STATE_IN", "INPUT0"}, Outputs: []string{"OUTPUT0"}, Attrs: []onnxmodel.Attr{{Name: "axis", Value: int64(1)}},
	}
	for i := range 2 {
		m.Graph.Inputs[i].Dims = onnxmodel.Dims("b", string("nm"[i]))
		m.Graph.Outputs[i].Dims = onnxmodel.Dims("b", "all")
	}
	c := stateful(4)
	c.Inputs[0].Dims, c.Outputs[0].Dims, c.Sequences.States[0].Dims = tensor.Shape{-1}, tensor.Shape{-1}, tensor.Shape{-1}
	return m, c
}

func TestStatesWhoseShapeVaries(t *testing.T) {
	m, c := appending()
	s := serve(t, m, c, nil)
	s.want(s.one(place(0, 1, "S"), 5), "OUTPUT0 FP32[1,2] [0 5]") // of any size is 1 at first
	s.want(new(batch).add(request(c, 6), place(0, 1, "")).add(request(c, 7), place(2, 2, "S")),
		"OUTPUT0 FP32[1,3] [0 5 6]", "OUTPUT0 FP32[1,2] [0 7]")
	s.want(s.one(place(0, 1, ""), 8, 9), "OUTPUT0 FP32[1,5] [0 5 6 8 9]")
	if n := s.bytes.Load(); n != 4*(5+2) {
		t.Errorf("states of %d bytes", n)
	}
}

func TestInitialStateOfAFile(t *testing.T) {
	m, c := appending()
	c.Sequences.States[0].Initial = &modelconfig.InitialState{Dims: tensor.Shape{2}, File: "first"}
	s := serve(t, m, c, map[string][]byte{"first": {0, 0, 128, 63, 0, 0, 0, 64, 1}}) // 1, 2 and what is not read
	s.want(s.one(place(0, 1, "S"), 5), "OUTPUT0 FP32[1,3] [1 2 5]")
	s.want(s.one(place(0, 1, ""), 6), "OUTPUT0 FP32[1,4] [1 2 5 6]")
	s.want(s.one(place(0, 1, "S"), 7), "OUTPUT0 FP32[1,3] [1 2 7]")
	s.want(s.one(place(1, 2, "S"), 8), "OUTPUT0 FP32[1,3] [1 2 8]")
}

func TestInitialStatesThatCannotBeMade(t *testing.T) {
	c := stateful(4)
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "initial_state"), 0o755), os.WriteFile(filepath.Join(dir, "initial_state", "short"), []byte("abc"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		initial modelconfig.InitialState
		want    string
	}{
		"no such file": {modelconfig.InitialState{Dims: tensor.Shape{2}, File: "none"}, "no such file"},
		"too short":    {modelconfig.InitialState{Dims: tensor.Shape{2}, File: "short"}, "initial_state setting expects 8 bytes, but the data provided from short only has 3 bytes"},
		"too much":     {modelconfig.InitialState{Dims: tensor.Shape{1 << 40}}, "give it smaller dims"},
	} {
		t.Run(name, func(t *testing.T) {
			c.Sequences.States[0].Initial = &tt.initial
			_, err := sequence.Prepare(backend.Version{Ref: infer.ModelRef{Name: "m"}, Config: c, ModelDir: dir}, sequence.Deps{})
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "load model 'm': initial state of 'STATE_IN': ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// A request that fails, is canceled or gives a state that is none leaves the state
// as it was.
func TestFailuresLeaveTheStateAsItWas(t *testing.T) {
	c := stateful(4)
	for name, fail := range map[string]func(backend.Batch){
		"failed":      func(b backend.Batch) { b.Respond(0, infer.Fail(infer.Work{}, errs.New(errs.ExecutionFailed, "no"))) },
		"no response": func(backend.Batch) {},
		"panic":       func(backend.Batch) { panic("broken") },
		"first state, then failed": func(b backend.Batch) {
			b.Respond(0, &infer.Response{Outputs: []infer.Tensor{state(t, tensor.FP32, 9)}})
			b.Respond(0, infer.Fail(infer.Work{}, errs.New(errs.ExecutionFailed, "no")))
		},
		"another datatype": func(b backend.Batch) {
			b.Respond(0, &infer.Response{Final: true, Outputs: []infer.Tensor{state(t, tensor.Int32, 9)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			pool := tensor.NewPool(0)
			m, held := prepare(t, backend.Version{Ref: infer.ModelRef{Name: "m"}, Config: c}, pool)
			var run func(backend.Batch)
			in := m.Instance(engine(func(b backend.Batch) { run(b); b.Done() }))
			execute := func(p infer.Slot, f func(backend.Batch)) *infer.Response {
				defer func() { _ = recover() }()
				run = f
				b := new(batch).add(request(c, 1, 1), p)
				in.Execute(b)
				return b.responses[0]
			}
			execute(place(0, 1, "S"), func(b backend.Batch) {
				b.Respond(0, &infer.Response{Final: true, Outputs: []infer.Tensor{state(t, tensor.FP32, 4)}})
			})
			if r := execute(place(0, 1, ""), fail); r != nil && r.Final && r.Err == nil {
				t.Errorf("response %+v", r)
			}
			var got []string
			execute(place(0, 1, ""), func(b backend.Batch) { got = write(t, b.Requests()[0].Inputs[1:]) })
			if diff := cmp.Diff([]string{"STATE_IN FP32[1,2] [4 4]"}, got); diff != "" {
				t.Error(diff)
			}
			if err := in.Close(); err != nil || held.Load() != 0 {
				t.Errorf("%v, and states of %d bytes are left", err, held.Load())
			}
		})
	}
}

// state is a state output of two elements.
func state(t *testing.T, d tensor.Datatype, x float32) infer.Tensor {
	t.Helper()
	of := request(stateful(4), x, x).Inputs[0]
	of.Name, of.Datatype = "STATE_OUT", d
	return of
}
