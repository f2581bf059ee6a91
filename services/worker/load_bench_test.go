package worker_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// BenchmarkLoadBeside measures what others' requests feel of 20 models being
// loaded, of 17 MB each, so many at a time. Requests come to an add-sub model at a constant rate,
// whether or not earlier ones are answered; quiet is the same without loads.
func BenchmarkLoadBeside(b *testing.B) {
	library := onnxmodel.Library(b)
	dir := b.TempDir()
	small := version(b, dir, "simple", onnxmodel.AddSub(tensor.Int32, "n", 16))
	large := make([]backend.Version, 20)
	for i := range large {
		large[i] = version(b, dir, fmt.Sprintf("large%d", i), deep(16, 512))
	}
	for _, loads := range []int{4, 2, 1} {
		b.Run(fmt.Sprintf("loads=%d", loads), func(b *testing.B) {
			engine, err := onnxruntime.Open(library, onnxruntime.Options{Pool: tensor.NewPool(64 << 20)})
			if err != nil {
				b.Fatal(err)
			}
			defer engine.Close()
			var quiet, busy []time.Duration
			var loading time.Duration
			for b.Loop() {
				q, l, took := loadBeside(b, engine, loads, small, large)
				quiet, busy, loading = append(quiet, q...), append(busy, l...), loading+took
			}
			for name, list := range map[string][]time.Duration{"quiet": quiet, "loading": busy} {
				slices.Sort(list)
				b.ReportMetric(float64(list[len(list)/2].Microseconds()), "p50-"+name+"-µs")
				b.ReportMetric(float64(list[len(list)*99/100].Microseconds()), "p99-"+name+"-µs")
			}
			b.ReportMetric(loading.Seconds()/float64(b.N), "loading-s")
		})
	}
}

// version writes a model whose configuration is as its graph.
func version(b *testing.B, dir, name string, m onnxmodel.Model) backend.Version {
	b.Helper()
	dir = filepath.Join(dir, name)
	m.WriteFile(b, filepath.Join(dir, "1", "model.onnx"))
	c := &modelconfig.Config{Name: name, Backend: "onnxruntime", MaxBatchSize: 8}
	for _, in := range m.Graph.Inputs {
		c.Inputs = append(c.Inputs, modelconfig.IO{Name: in.Name, Datatype: in.Type, Dims: tensor.Shape{in.Dims[1].Size}})
	}
	for _, out := range m.Graph.Outputs {
		c.Outputs = append(c.Outputs, modelconfig.IO{Name: out.Name, Datatype: out.Type, Dims: tensor.Shape{out.Dims[1].Size}})
	}
	return backend.Version{
		Ref: infer.ModelRef{Name: name, Version: 1, Generation: 1}, Config: c, ModelDir: dir, Dir: filepath.Join(dir, "1"),
	}
}

// deep is a chain of so many matrix products with weights of their own.
func deep(layers int, width int) onnxmodel.Model {
	value := func(name string) onnxmodel.Value {
		return onnxmodel.Value{Name: name, Type: tensor.FP32, Dims: onnxmodel.Dims("n", width)}
	}
	g := onnxmodel.Graph{Name: "deep", Inputs: []onnxmodel.Value{value("h0")}, Outputs: []onnxmodel.Value{value(fmt.Sprint("h", layers))}}
	for i := range layers {
		weights := make([]byte, 0, 4*width*width)
		for k := range width * width {
			weights = binary.LittleEndian.AppendUint32(weights, math.Float32bits(float32(k%7+i)*1e-3))
		}
		name := fmt.Sprint("w", i)
		g.Initializers = append(g.Initializers, onnxmodel.Tensor{Name: name, Type: tensor.FP32, Shape: tensor.Shape{int64(width), int64(width)}, Raw: weights})
		g.Nodes = append(g.Nodes, onnxmodel.Node{Op: "MatMul", Inputs: []string{fmt.Sprint("h", i), name}, Outputs: []string{fmt.Sprint("h", i+1)}})
	}
	return onnxmodel.Model{Graph: g}
}

// loadBeside serves the small model for a second, loads the large ones while
// it goes on, and returns the latencies of both times and how long the loads
// took.
func loadBeside(b *testing.B, engine backend.Backend, loads int, small backend.Version, large []backend.Version) (quiet, busy []time.Duration, took time.Duration) {
	b.Helper()
	s := &stream{clock: mono.New(), idle: make(chan infer.InstanceID, 2), sent: make(map[uint64]mono.Time)}
	s.executor = instance.NewExecutor(1, instance.Deps{Scheduler: s, Responder: s, Clock: s.clock, Batches: batches.New()})
	var loaded atomic.Int64
	c := reconcile.Config{Loads: loads, EngineLoads: loads, Linger: time.Millisecond, Drain: time.Minute}
	r := reconcile.New(c, reconcile.Deps{
		Backend:   func(string) (backend.Backend, error) { return engine, nil },
		Sequences: func(backend.Version) (*sequence.Model, error) { return nil, nil },
		Source:    source.Local{},
		Instances: s,
		Meter:     memory.NewMeter(memory.Linux().Resident),
		Publish:   func(infer.ModelID, []reconcile.VersionStatus) {},
		Reached:   func(reconcile.Revisions) {},
		Failed:    func(_ infer.ModelRef, err error) { b.Error(err) },
		Retried:   func(backend.Version, time.Duration, error) {},
		Loaded: func(_ backend.Version, _ time.Duration, err error) {
			if err != nil {
				b.Error(err)
			}
			loaded.Add(1)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool)
	go func() {
		r.Run(ctx)
		close(done)
	}()
	desire := func(versions ...backend.Version) {
		r.Change(ctx, func(d *reconcile.Desired) {
			for _, v := range versions {
				files := source.Content{ModelURL: "file://" + v.ModelDir, URL: "file://" + v.Dir}
				d.SetModel(v.Ref.Name, []reconcile.Version{{Ref: v.Ref, Serve: true, Config: v.Config, Files: files}}, 1)
				d.Assign(v.Ref.ID(), reconcile.Assignment{Versions: []reconcile.Assigned{{Ref: v.Ref, Groups: []reconcile.Group{{Name: v.Ref.Name, Count: 2}}}}})
			}
			d.ModelsKnown(1)
			d.SetHead(reconcile.Head{})
			d.AssignmentKnown()
		})
	}
	desire(small)
	s.first = [2]infer.InstanceID{<-s.idle, <-s.idle}
	s.idle <- s.first[0]
	s.idle <- s.first[1]
	end := time.Now().Add(time.Second)
	quiet = s.run(func() bool { return time.Now().Before(end) })
	start := time.Now()
	desire(append(large, small)...)
	busy = s.run(func() bool { return loaded.Load() <= int64(len(large)) })
	took = time.Since(start)
	cancel()
	<-done
	return quiet, busy, took
}

// stream is the scheduler and gateway of one model with two instances.
type stream struct {
	clock    mono.Clock
	executor *instance.Executor
	idle     chan infer.InstanceID
	first    [2]infer.InstanceID // the small model's

	sent    map[uint64]mono.Time // owned by run
	results chan result
}

type result struct {
	order    uint64
	instance infer.InstanceID
	at       mono.Time
}

func (*stream) Attach(uint64, infer.Held, infer.Executor) {}
func (*stream) Detach(uint64)                             {}
func (s *stream) Grant(g infer.Grant) {
	if g.Model.Name == "simple" {
		s.idle <- g.Instance
	}
}
func (s *stream) Retire(id infer.InstanceID) { s.executor.Retired(id) }
func (*stream) Respond(r *infer.Response)    { r.Release() }

func (*stream) UnitDone(infer.UnitDone)          {}
func (*stream) Return(_ *infer.Batch, err error) { panic(err) }
func (s *stream) InstanceFree(c *infer.InstanceFree) {
	s.results <- result{c.Batch.Number, c.Instance, s.clock.Now()}
}

func (s *stream) Open(l reconcile.InstanceSpec) infer.InstanceID {
	return s.executor.Open(instance.Spec{Model: l.Model, Name: l.Name, Instance: l.Instance})
}

func (s *stream) Close(ctx context.Context, id infer.InstanceID) error {
	return s.executor.Close(ctx, id)
}

// run sends a request each millisecond while it shall, and returns how long
// each took from when it was due.
func (s *stream) run(more func() bool) []time.Duration {
	s.results = make(chan result, 4)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var took []time.Duration
	var waiting []mono.Time
	next := s.clock.Now()
	var number uint64
	for running := 0; more() || running > 0; {
		select {
		case <-tick.C:
		case r := <-s.results:
			running--
			took = append(took, r.at.Sub(s.sent[r.order]))
			delete(s.sent, r.order)
			s.idle <- r.instance
		}
		for now := s.clock.Now(); next <= now; next = next.Add(time.Millisecond) {
			waiting = append(waiting, next)
		}
		for len(waiting) > 0 && len(s.idle) > 0 && more() {
			number++
			s.sent[number] = waiting[0]
			waiting = waiting[1:]
			running++
			s.executor.Execute(addSub(number, <-s.idle))
		}
	}
	return took
}

func addSub(number uint64, id infer.InstanceID) *infer.Batch {
	r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Number: number}}, BatchSize: 1}
	for _, name := range [...]string{onnxmodel.Input0, onnxmodel.Input1} {
		r.Inputs = append(r.Inputs, infer.Tensor{Name: name, Datatype: tensor.Int32, Shape: tensor.Shape{1, 16}, Data: tensor.InHeap(make([]byte, 64))})
	}
	return &infer.Batch{ID: infer.BatchID{Epoch: 1, Number: number}, Instance: id, Requests: []*infer.Request{r}}
}
