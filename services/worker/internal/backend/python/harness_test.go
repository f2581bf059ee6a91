package python_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/python"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// interpreter is the Python of the tests.
func interpreter(t testing.TB) string {
	t.Helper()
	path := os.Getenv("NEREID_PYTHON")
	if path == "" {
		t.Skip("NEREID_PYTHON names no interpreter")
	}
	return path
}

// world is an instance of a Python model in its lane.
type world struct {
	t        testing.TB
	backend  backend.Backend
	model    backend.Model
	version  backend.Version
	instance backend.Instance
	executor *instance.Executor
	id       infer.InstanceID
	logs     *observer.ObservedLogs
	metrics  *prometheus.Registry
	pool     *tensor.Pool

	mu        sync.Mutex
	next      uint64
	responses map[uint64][]*infer.Response // by request; guarded by mu
	loaded    string                       // guarded by mu
	given     chan int                     // by the model many; closed when its call has ended
	changed   chan struct{}                // closed when there is a response or a credit; guarded by mu
	credits   int                          // batches that the instance takes; guarded by mu
	returned  []*infer.Batch               // that wait for a credit; guarded by mu
}

// options are what a test wants of its world.
type options struct {
	settings map[string]string
	config   modelconfig.Config
	files    map[string]string
	policies map[string]cores.Set
	spec     backend.InstanceSpec
	// based are Python-based backends.
	based map[string]python.Based
}

// newWorld makes one that has no instance yet.
func newWorld(t testing.TB) *world {
	return &world{t: t, responses: make(map[uint64][]*infer.Response), changed: make(chan struct{})}
}

// load loads a model whose file has this text.
func load(t testing.TB, code string, o options) (*world, error) {
	t.Helper()
	settings := map[string]string{"python-path": interpreter(t)}
	for key, value := range o.settings {
		settings[key] = value
	}
	core, logs := observer.New(zapcore.DebugLevel)
	w := newWorld(t)
	w.logs, w.metrics, w.pool = logs, prometheus.NewRegistry(), tensor.NewPool(1<<20)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("log:\n" + w.logged())
		}
	})
	driver := python.Driver(python.Deps{Log: zap.New(core), Metrics: w.metrics, Based: o.based})
	if err := driver.Check(settings); err != nil {
		return nil, err
	}
	b, err := driver.Open(backend.Environment{Settings: settings, Pool: w.pool, Control: w, HostPolicies: o.policies})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	for name, text := range o.files {
		write(t, filepath.Join(dir, name), text)
	}
	if code != "" {
		write(t, filepath.Join(dir, "1", "model.py"), code)
	}
	config := o.config
	config.Name = "m"
	w.backend = b
	w.version = backend.Version{Ref: infer.ModelRef{Name: "m", Version: 1}, Config: &config, ModelDir: dir, Dir: filepath.Join(dir, "1")}
	if w.model, err = b.Load(t.Context(), w.version); err != nil {
		return nil, err
	}
	o.spec.Name = "m_0_0"
	if w.instance, err = w.model.NewInstance(t.Context(), o.spec); err != nil {
		return w, err
	}
	w.serve(w.instance)
	return w, nil
}

// serve gives an instance its lane.
func (w *world) serve(served backend.Instance) {
	w.executor = instance.NewExecutor(1, instance.Deps{Scheduler: w, Responder: w, Calls: w, Clock: mono.New(), Batches: batches.New(), Pipelined: 1})
	w.id = w.executor.Open(instance.Spec{Name: "m_0_0", Instance: served})
	w.t.Cleanup(func() {
		if err := w.executor.Close(w.t.Context(), w.id); err != nil && w.t.Context().Err() == nil {
			w.t.Error(err)
		}
	})
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run is load for a model that has to load.
func run(t testing.TB, code string, o options) *world {
	t.Helper()
	w, err := load(t, code, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) logged() string {
	var lines []string
	for _, e := range w.logs.All() {
		lines = append(lines, fmt.Sprint(e.Level, " ", e.Message, " ", e.ContextMap(), e.Stack))
	}
	return strings.Join(lines, "\n")
}

func (w *world) Attach(uint64, infer.Held, infer.Executor) {}
func (w *world) Detach(uint64)                             {}
func (w *world) Retire(id infer.InstanceID)                { w.executor.Retired(id) }
func (w *world) UnitDone(infer.UnitDone)                   {}

func (w *world) Grant(g infer.Grant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.credits += g.Credits
	w.tellLocked()
}

func (w *world) InstanceFree(c *infer.InstanceFree) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.credits += c.Credits
	w.tellLocked()
}

// Return has the instance run a batch again that met it away.
func (w *world) Return(b *infer.Batch, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if errs.Of(err) != errs.InstanceAway {
		w.t.Error(err)
	}
	w.credits++
	w.returned = append(w.returned, b)
	w.tellLocked()
}

// tellLocked wakes all waiters, and gives credits to what was returned.
func (w *world) tellLocked() {
	for w.credits > 0 && len(w.returned) > 0 {
		w.credits--
		go w.executor.Execute(w.returned[0])
		w.returned = w.returned[1:]
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) Respond(r *infer.Response) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := r.Work.Request.Number
	w.responses[n] = append(w.responses[n], r)
	w.tellLocked()
}

// Call answers calls: the model echo gives the input X as Y, twice where that is asked
// for, and there is no other.
func (w *world) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	if c.Model == "many" {
		return w.many(c, receive)
	}
	if c.Model != "echo" {
		c.Release()
		receive(&infer.Response{Final: true, Err: errs.New(errs.ModelNotFound, "there is no model %s", c.Model)})
		return func() {}
	}
	x := c.Inputs[0]
	give := func(final bool) {
		receive(&infer.Response{Final: final, Outputs: []infer.Tensor{{Name: "Y", Datatype: x.Datatype, Shape: x.Shape, Data: x.Data.Retain()}}})
	}
	go func() {
		if !c.Single {
			give(false)
		}
		give(true)
		c.Release()
	}()
	return func() {}
}

// results is how many the model many gives.
const results = 100

// many gives the input X as Y, again and again.
func (w *world) many(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	w.given = make(chan int, results)
	stop := make(chan struct{})
	go func() {
		defer close(w.given)
		defer c.Release()
		x := c.Inputs[0]
		for i := range results {
			select {
			case <-stop:
				receive(&infer.Response{Final: true, Err: errs.New(errs.Canceled, "")})
				return
			default:
			}
			receive(&infer.Response{Final: i == results-1, Outputs: []infer.Tensor{{Name: "Y", Datatype: x.Datatype, Shape: x.Shape, Data: x.Data.Retain()}}})
			w.given <- i
		}
	}()
	return sync.OnceFunc(func() { close(stop) })
}

// LoadModel notes a load, and UnloadModel refuses.
func (w *world) LoadModel(_ context.Context, model, config string, files map[string][]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loaded = fmt.Sprintf("%s %s %s", model, config, files)
	return nil
}

func (w *world) UnloadModel(context.Context, string, bool) error {
	return errs.New(errs.ModelNotFound, "it is not there")
}

func (w *world) ModelReady(model, version string) (bool, error) {
	return model+version == "other2", nil
}

// send sends a batch of requests, when the instance takes one, and returns their numbers.
func (w *world) send(requests ...*infer.Request) (numbers []uint64) {
	b := &infer.Batch{Instance: w.id}
	w.takeCredit()
	w.mu.Lock()
	for _, r := range requests {
		w.next++
		r.Work.Request = infer.RequestID{Origin: 1, Number: w.next}
		if r.BatchSize == 0 {
			r.BatchSize = 1
		}
		b.Requests, b.Enqueued = append(b.Requests, r), append(b.Enqueued, 0)
		numbers = append(numbers, w.next)
	}
	b.ID = infer.BatchID{Epoch: 1, Number: w.next}
	w.mu.Unlock()
	w.executor.Execute(b)
	return numbers
}

// patience is how long a test waits for what has to come.
const patience = 2 * time.Minute

func (w *world) takeCredit() {
	w.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		w.mu.Lock()
		free, changed := w.credits > 0, w.changed
		if free {
			w.credits--
		}
		w.mu.Unlock()
		if free {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			w.t.Fatal("the instance takes no batch")
		}
	}
}

// await waits until a request has so many responses, or its last.
func (w *world) await(number uint64, n int) []*infer.Response {
	w.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		w.mu.Lock()
		list, changed := w.responses[number], w.changed
		w.mu.Unlock()
		if len(list) >= n || len(list) > 0 && list[len(list)-1].Final {
			return list
		}
		select {
		case <-changed:
		case <-limit.C:
			w.t.Fatalf("request %d has %d responses, want %d", number, len(list), n)
		}
	}
}

// all waits for all responses of a request.
func (w *world) all(number uint64) []*infer.Response {
	w.t.Helper()
	return w.await(number, math.MaxInt)
}

// infer sends a request and returns its only response.
func (w *world) infer(r *infer.Request) *infer.Response {
	w.t.Helper()
	list := w.all(w.send(r)[0])
	if len(list) != 1 {
		w.t.Fatalf("%d responses, want one", len(list))
	}
	return list[0]
}

// fails wants a request to fail with that reason and text.
func (w *world) fails(r *infer.Response, reason errs.Reason, text string) {
	w.t.Helper()
	if errs.Of(r.Err) != reason || !strings.Contains(errs.From(r.Err).Msg, text) {
		w.t.Errorf("error %q of %v, want %q of %v", r.Err, errs.Of(r.Err), text, reason)
	}
}

// floats is a tensor FP32 of one dimension.
func floats(name string, values ...float32) infer.Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return infer.Tensor{Name: name, Datatype: tensor.FP32, Shape: tensor.Shape{int64(len(values))}, Data: tensor.InHeap(data)}
}

func texts(name string, values ...string) infer.Tensor {
	var data []byte
	for _, v := range values {
		data = tensor.AppendBytes(data, v)
	}
	return infer.Tensor{Name: name, Datatype: tensor.Bytes, Shape: tensor.Shape{int64(len(values))}, Data: tensor.InHeap(data)}
}

func ask(inputs ...infer.Tensor) *infer.Request { return &infer.Request{Inputs: inputs} }

// show writes a response and releases it.
func (w *world) show(r *infer.Response) string {
	w.t.Helper()
	defer r.Release()
	if r.Err != nil {
		return "error " + r.Err.Error()
	}
	var parts []string
	for _, o := range r.Outputs {
		data, err := o.Data.Bytes()
		if err != nil {
			w.t.Fatal(err)
		}
		var values []string
		for len(data) > 0 {
			if o.Datatype == tensor.Bytes {
				var element []byte
				if element, data, err = tensor.CutBytes(data); err != nil {
					w.t.Fatal(err)
				}
				values = append(values, string(element))
				continue
			}
			values = append(values, fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(data))))
			data = data[4:]
		}
		parts = append(parts, fmt.Sprintf("%s%v=%s", o.Name, o.Shape, strings.Join(values, ",")))
	}
	for _, p := range r.Parameters {
		parts = append(parts, fmt.Sprintf("%s:%T=%v", p.Key, p.Value, p.Value))
	}
	return strings.Join(parts, " ")
}

// io lists inputs or outputs of one dimension.
func io(d tensor.Datatype, names ...string) (list []modelconfig.IO) {
	for _, n := range names {
		list = append(list, modelconfig.IO{Name: n, Datatype: d, Dims: tensor.Shape{-1}})
	}
	return list
}
