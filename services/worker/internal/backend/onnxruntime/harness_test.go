//go:build cgo

package onnxruntime_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// open opens the backend for one test, with a pool of its own, and checks at
// the end that all memory has come back.
func open(t testing.TB) (*onnxruntime.Backend, *tensor.Pool) {
	t.Helper()
	pool := tensor.NewPool(64 << 20)
	b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := b.Held(); n != 0 {
			t.Errorf("%d outputs of the runtime were not released", n)
		}
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d bytes of mapped memory were not given back", n)
		}
	})
	return b, pool
}

// version writes the model into a version directory.
func version(t testing.TB, m onnxmodel.Model, c *modelconfig.Config) backend.Version {
	t.Helper()
	dir := filepath.Join(t.TempDir(), c.Name)
	v := backend.Version{
		Ref: infer.ModelRef{Name: c.Name, Version: 1}, Config: c,
		ModelDir: dir, Dir: filepath.Join(dir, "1"),
	}
	m.WriteFile(t, filepath.Join(v.Dir, "model.onnx"))
	return v
}

// instance loads the model and makes an instance, closed at the end.
func instance(t testing.TB, b *onnxruntime.Backend, m onnxmodel.Model, c *modelconfig.Config) backend.Instance {
	t.Helper()
	return serve(t, b, version(t, m, c))
}

// serve loads the version and makes an instance, closed at the end.
func serve(t testing.TB, b *onnxruntime.Backend, v backend.Version) backend.Instance {
	t.Helper()
	loaded, err := b.Load(context.Background(), v)
	if err != nil {
		t.Fatal(err)
	}
	in, err := loaded.NewInstance(context.Background(), backend.InstanceSpec{Name: v.Ref.Name + "_0_0", Kind: modelconfig.KindCPU})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := loaded.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// config makes a configuration named "m".
func config(maxBatch int64, inputs, outputs []modelconfig.IO) *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", Backend: "onnxruntime", Filename: "model.onnx",
		MaxBatchSize: maxBatch, Inputs: inputs, Outputs: outputs,
	}
}

func io(name string, d tensor.Datatype, dims ...int64) modelconfig.IO {
	return modelconfig.IO{Name: name, Datatype: d, Dims: dims}
}

func ios(list ...modelconfig.IO) []modelconfig.IO { return list }

// batch is a backend.Batch that keeps what it is told.
type batch struct {
	t         testing.TB
	requests  []*infer.Request
	responses [][]*infer.Response
	executed  int
	marks     string // I at InputDone, F at InferDone, D at Done
	inputDone chan struct{}
	onInput   func() // called by InputDone, if not nil

	mu       sync.Mutex
	canceled bool   // guarded by mu
	stop     func() // guarded by mu
}

func newBatch(t testing.TB, requests ...*infer.Request) *batch {
	return &batch{
		t: t, requests: requests, responses: make([][]*infer.Response, len(requests)),
		inputDone: make(chan struct{}),
	}
}

func (b *batch) Requests() []*infer.Request { return b.requests }

func (b *batch) BatchSize() (n int64) {
	for _, r := range b.requests {
		n += r.BatchSize
	}
	return n
}

func (b *batch) Respond(i int, r *infer.Response) { b.responses[i] = append(b.responses[i], r) }

func (*batch) Call(int, *infer.Call, func(*infer.Response)) func() { return nil }

func (b *batch) Canceled(int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.canceled
}

func (b *batch) OnCancelEach(func(int)) {}
func (b *batch) GiveBack(err error)     { panic(err) }

func (b *batch) OnCancel(stop func()) {
	b.mu.Lock()
	b.stop = stop
	now := b.canceled
	b.mu.Unlock()
	if now {
		stop()
	}
}

// cancel cancels all requests.
func (b *batch) cancel() {
	b.mu.Lock()
	b.canceled = true
	stop := b.stop
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}

func (b *batch) InputDone() {
	b.marks += "I"
	close(b.inputDone)
	if b.onInput != nil {
		b.onInput()
	}
}

func (b *batch) Room(int) <-chan struct{} { return nil }
func (b *batch) InferDone()               { b.marks += "F" }
func (b *batch) Executed()                { b.executed++ }

func (*batch) Free()          {}
func (*batch) Again(int) bool { return false }
func (b *batch) Done() {
	b.marks += "D"
	for _, r := range b.requests {
		r.Release()
	}
}

// response returns request i's only response, and fails on any other number.
func (b *batch) response(i int) *infer.Response {
	b.t.Helper()
	if b.marks != "IFD" {
		b.t.Fatalf("phases were marked %q, want IFD", b.marks)
	}
	if n := len(b.responses[i]); n != 1 {
		b.t.Fatalf("request %d has %d responses, want 1", i, n)
	}
	r := b.responses[i][0]
	if !r.Final {
		b.t.Fatalf("request %d's response is not final", i)
	}
	return r
}

// run executes requests as one batch.
func run(t testing.TB, in backend.Instance, requests ...*infer.Request) *batch {
	t.Helper()
	b := newBatch(t, requests...)
	in.Execute(b)
	return b
}

// value is a tensor as tests write it.
type value struct {
	Name  string
	Type  tensor.Datatype
	Shape tensor.Shape
	Data  string // the bytes
}

// request makes a request of the inputs, whose bytes are on the Go heap.
func request(rows int64, inputs ...value) *infer.Request {
	r := &infer.Request{BatchSize: rows}
	for _, v := range inputs {
		r.Inputs = append(r.Inputs, infer.Tensor{
			Name: v.Name, Datatype: v.Type, Shape: v.Shape, Data: tensor.InHeap([]byte(v.Data)),
		})
	}
	return r
}

// outputs reads a response's outputs and releases them.
func outputs(t testing.TB, r *infer.Response) []value {
	t.Helper()
	if r.Err != nil {
		t.Fatalf("response has error: %v", r.Err)
	}
	var list []value
	for _, o := range r.Outputs {
		data, err := o.Data.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, value{o.Name, o.Datatype, append(tensor.Shape{}, o.Shape...), string(data)})
	}
	r.Release()
	return list
}

// pack writes numbers little-endian.
func pack(numbers any) string {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, numbers); err != nil {
		panic(err)
	}
	return b.String()
}

func text(elements ...string) string {
	var data []byte
	for _, e := range elements {
		data = tensor.AppendBytes(data, e)
	}
	return string(data)
}
