package repeat_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/repeat"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

func config() *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", Decoupled: true,
		Inputs: []modelconfig.IO{
			{Name: "IN", Datatype: tensor.Int32, Dims: tensor.Shape{-1}},
			{Name: "DELAY", Datatype: tensor.Uint32, Dims: tensor.Shape{-1}},
			{Name: "WAIT", Datatype: tensor.Uint32, Dims: tensor.Shape{1}},
		},
		Outputs: []modelconfig.IO{
			{Name: "OUT", Datatype: tensor.Int32, Dims: tensor.Shape{1}}, {Name: "IDX", Datatype: tensor.Uint32, Dims: tensor.Shape{1}},
		},
	}
}

// world is an instance of the backend in its lane, and what the others are told.
type world struct {
	t        *testing.T
	executor *instance.Executor
	id       infer.InstanceID
	began    time.Time

	mu  sync.Mutex
	log []string // guarded by mu
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, began: time.Now()}
	m, err := new(repeat.Backend).Load(t.Context(), backend.Version{Config: config()})
	if err != nil {
		t.Fatal(err)
	}
	in, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
	if err != nil {
		t.Fatal(err)
	}
	w.executor = instance.NewExecutor(1, instance.Deps{Scheduler: w, Responder: w, Clock: mono.New(), Batches: batches.New(), Pipelined: 1})
	w.id = w.executor.Open(instance.Spec{Name: "m_0_0", Instance: in})
	return w
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%v ", time.Since(w.began))+fmt.Sprintf(format, args...))
}

func (w *world) Attach(uint64, infer.Held, infer.Executor) {}
func (w *world) Detach(uint64)                             {}
func (w *world) Grant(infer.Grant)                         {}
func (w *world) Retire(id infer.InstanceID)                { w.executor.Retired(id) }
func (w *world) Return(_ *infer.Batch, err error)          { w.t.Error(err) }
func (w *world) InstanceFree(f *infer.InstanceFree)        { w.note("free of %d", f.Batch.Number) }
func (w *world) UnitDone(d infer.UnitDone)                 { w.note("%d done: %d", d.Work.Request.Number, d.Outcome) }

func (w *world) Respond(r *infer.Response) {
	text := fmt.Sprintf("%d:", r.Work.Request.Number)
	for _, o := range r.Outputs {
		data, err := o.Data.Bytes()
		if err != nil || !o.Shape.Equal(tensor.Shape{1}) {
			w.t.Errorf("%s of shape %v: %v", o.Name, o.Shape, err)
		}
		text += fmt.Sprintf(" %s=%d", o.Name, int32(binary.LittleEndian.Uint32(data)))
	}
	if r.Final {
		text += " final"
	}
	w.note("%s%s", text, strings.TrimRight(" "+string(errs.Of(r.Err)), " "))
	r.Release()
}

func elements(values ...int32) tensor.Ref {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	return tensor.InHeap(data)
}

func (w *world) execute(number uint64, in, delay []int32, wait int32, outputs ...infer.Output) {
	r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: number}}, BatchSize: 1, Outputs: outputs, Inputs: []infer.Tensor{
		{Name: "DELAY", Data: elements(delay...)}, {Name: "WAIT", Data: elements(wait)}, {Name: "IN", Data: elements(in...)},
	}}
	w.executor.Execute(&infer.Batch{
		ID: infer.BatchID{Epoch: 1, Number: number}, Instance: w.id, Requests: []*infer.Request{r}, Enqueued: []mono.Time{0},
	})
}

// expect closes the instance and compares what happened.
func (w *world) expect(want ...string) {
	w.t.Helper()
	if err := w.executor.Close(w.t.Context(), w.id); err != nil {
		w.t.Error(err)
	}
	if diff := cmp.Diff(want, w.log); diff != "" {
		w.t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEachElementIsAResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, []int32{7, -8}, []int32{10, 20}, 50)
		w.expect("10ms 1: OUT=7 IDX=0", "30ms 1: OUT=-8 IDX=1", "30ms 1: final", "50ms free of 1")
	})
}

func TestNoElementIsNoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, nil, nil, 1)
		w.expect("0s 1: final", "1ms free of 1")
	})
}

func TestOutputsThatAreAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, []int32{7}, []int32{0}, 1, infer.Output{Name: "IDX"})
		w.expect("0s 1: IDX=0", "0s 1: final", "1ms free of 1")
	})
}

func TestRequestsOverlapAfterTheirWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, []int32{1, 2}, []int32{30, 40}, 10)
		w.execute(2, []int32{3}, []int32{25}, 1)
		w.expect("10ms free of 1", "11ms free of 2", "30ms 1: OUT=1 IDX=0", "35ms 2: OUT=3 IDX=0", "35ms 2: final", "35ms 2 done: 0",
			"70ms 1: OUT=2 IDX=1", "70ms 1: final", "70ms 1 done: 0")
	})
}

func TestCancellationEndsDelayAndWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, []int32{1, 2}, []int32{5, 1 << 30}, 1<<30)
		<-time.After(6 * time.Millisecond)
		w.executor.Cancel(infer.BatchID{Epoch: 1, Number: 1}, infer.RequestID{Origin: 1, Number: 1})
		synctest.Wait()
		slices.Sort(w.log) // the request and its instance end at once, in any order
		w.log = slices.DeleteFunc(w.log, func(s string) bool { return strings.Contains(s, "done") })
		w.expect("5ms 1: OUT=1 IDX=0", "6ms 1: final cancelled", "6ms free of 1")
	})
}

func TestRequestsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.execute(1, []int32{1}, nil, 1)
		w.expect("0s 1: final shape_mismatch", "0s free of 1")
	})
}

func TestLoadRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*modelconfig.Config)
		want string
	}{
		"a model that gives one":   {func(c *modelconfig.Config) { c.Decoupled = false }, "add  model_transaction_policy { decoupled: true }"},
		"batches":                  {func(c *modelconfig.Config) { c.MaxBatchSize = 4 }, "repeat backend only supports models with max_batch_size == 0, not 4"},
		"fewer inputs":             {func(c *modelconfig.Config) { c.Inputs = c.Inputs[1:] }, "expected 3 inputs, got 2"},
		"more outputs":             {func(c *modelconfig.Config) { c.Outputs = append(c.Outputs, c.Outputs[0]) }, "expected 2 outputs, got 3"},
		"another name":             {func(c *modelconfig.Config) { c.Inputs[2].Name = "PAUSE" }, "there is no input WAIT"},
		"another datatype":         {func(c *modelconfig.Config) { c.Inputs[1].Datatype = tensor.Int32 }, "expected DELAY datatype to be UINT32, got INT32"},
		"more dimensions":          {func(c *modelconfig.Config) { c.Inputs[0].Dims = tensor.Shape{-1, 2} }, "expected IN shape to be"},
		"an output of any numbers": {func(c *modelconfig.Config) { c.Outputs[0].Dims = tensor.Shape{-1} }, "expected OUT shape to be [1]"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tt.edit(c)
			_, err := new(repeat.Backend).Load(t.Context(), backend.Version{Config: c})
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v, want load_failed with %q", err, tt.want)
			}
		})
	}
}
