package embedded

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

// slowOnCPU is a model that prefers GPUs: on a CPU it takes an hour.
const slowOnCPU = `
backend: "echo"
input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] }
instance_group [ { kind: KIND_GPU count: 1 }, { kind: KIND_CPU count: 1 } ]
parameters { key: "execute_us" value { string_value: "3600000000" } }
parameters { key: "gpu.execute_us" value { string_value: "0" } }
`

// devices is a pool whose workers the test starts, one for each device.
type devices struct {
	t         *testing.T
	bus       *bus.Bus
	scheduler *scheduler.Scheduler
	instances *bus.Bucket[*nereidv1.InstancesValue]
	answers   chan *infer.Response
}

func (d *devices) Respond(r *infer.Response) { d.answers <- r }

// run runs a part until the test's end.
func (d *devices) run(name string, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- lifecycle.Run(ctx, lifecycle.Part{Name: name, Run: part}) }()
	d.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Errorf("%s: %v", name, err)
		}
	})
}

func startDevices(t *testing.T, config string) *devices {
	t.Helper()
	repository := t.TempDir()
	if err := os.MkdirAll(filepath.Join(repository, "m", "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repository, "m", "config.pbtxt"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := bus.Open(t.Context(), bus.Config{Lease: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := &devices{t: t, bus: b, instances: bucket[*nereidv1.InstancesValue](t, b, bus.Instances), answers: make(chan *infer.Response, 64)}
	d.scheduler, err = scheduler.New(scheduler.Default(), scheduler.Deps{
		Bus: b, Clock: mono.New(), Responder: d, Metrics: obs.NewMetrics("", nil), Log: zap.NewNop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.run("scheduler", d.scheduler.Run)
	c := registry.Default()
	c.Repositories = []string{repository}
	reg, err := registry.New(c, registry.Deps{Bus: b, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	d.run("registry", reg.Run)
	return d
}

// start starts a device's worker and waits until its instances are ready,
// whose devices it returns with the model they belong to, and with the log of
// what it executes.
func (d *devices) start(id string, device worker.Device) (log string, ref infer.ModelRef, ready []string) {
	d.t.Helper()
	c := worker.Default()
	log = filepath.Join(d.t.TempDir(), "executions")
	c.ID, c.Device, c.DrainTimeout, c.ExecutionLog = id, device, 0, log
	nobody := export.NewEndpoint(export.Config{}).Caller()
	w, err := worker.New(c, worker.Deps{
		Bus: d.bus, Scheduler: d.scheduler, Responder: d, Calls: nobody, Control: nobody, Clock: mono.New(), Pool: tensor.NewPool(0),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.run(id, w.Run)
	ref, ready = d.ready(id)
	return log, ref, ready
}

// ready waits until a worker's instances are ready and returns their devices and
// the model that they belong to.
func (d *devices) ready(id string) (ref infer.ModelRef, ready []string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	for e := range d.instances.Watch(ctx) {
		for _, v := range e.Value.GetVersions() {
			if e.Value.GetWorkerId() != id || v.GetState() != nereidv1.State_STATE_READY {
				continue
			}
			for _, in := range v.GetInstances() {
				ready = append(ready, in.GetDevice())
			}
			m := v.GetModel()
			return infer.ModelRef{Name: m.GetName(), Version: m.GetVersion(), Generation: m.GetGeneration()}, ready
		}
	}
	d.t.Fatalf("the worker %s has no instance", id)
	return ref, nil
}

func (d *devices) submit(ref infer.ModelRef, number uint64) {
	d.t.Helper()
	r := &infer.Request{
		Work: infer.Work{Request: infer.RequestID{Number: number}}, Model: ref, BatchSize: 1,
		Inputs: []infer.Tensor{{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1}, Data: tensor.InHeap([]byte{1})}},
	}
	if err := d.scheduler.Submit(r); err != nil {
		d.t.Fatal(err)
	}
}

// answer waits for a response, drops its outputs and returns whose it was.
func (d *devices) answer() (uint64, error) {
	d.t.Helper()
	select {
	case r := <-d.answers:
		r.Release()
		return r.Work.Request.Number, r.Err
	case <-time.After(patience):
		d.t.Fatal("no answer")
		return 0, nil
	}
}

// executions counts the requests that began and ended by a worker's log.
func executions(t *testing.T, log string) (begun, ended int) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), `"event":"begin"`), strings.Count(string(text), `"event":"end"`)
}

// A model's groups name device kinds in the order of preference. Without a
// GPU it runs on the CPU; with both, a request on the slow device holds up
// nobody, since the others go to whatever instance is idle.
func TestModelSpillsToTheNextDeviceKind(t *testing.T) {
	d := startDevices(t, slowOnCPU)
	slow, ref, ready := d.start("slow", worker.Device{Kind: modelconfig.KindCPU})
	if !slices.Equal(ready, []string{"cpu"}) {
		t.Errorf("without a GPU the instances are on %v, want the CPU", ready)
	}
	fast, _, ready := d.start("fast", worker.Device{Kind: modelconfig.KindGPU, Number: 1})
	if !slices.Equal(ready, []string{"gpu:1"}) {
		t.Errorf("the instances of the GPU's worker are on %v, want gpu:1", ready)
	}
	const requests = 30
	waiting := make(map[uint64]bool)
	for n := range uint64(requests) {
		waiting[n] = true
		d.submit(ref, n)
	}
	for range requests - 1 { // one may be on the CPU
		n, err := d.answer()
		if err != nil || !waiting[n] {
			t.Fatalf("request %d, which waited: %v, ended with %v", n, waiting[n], err)
		}
		delete(waiting, n)
	}
	// An execution is over a moment after its answer was given.
	(&unled{t: t}).eventually("the executions on the GPU", func() bool {
		_, ended := executions(t, fast)
		return ended >= requests-1
	})
	if begun, ended := executions(t, slow); begun > 1 || ended != 0 {
		t.Errorf("%d began on the CPU and %d ended there", begun, ended)
	}
	for n := range waiting {
		d.scheduler.Cancel(infer.RequestID{Number: n})
		if answered, _ := d.answer(); answered != n {
			t.Errorf("request %d ended, want the cancelled %d", answered, n)
		}
	}
}
