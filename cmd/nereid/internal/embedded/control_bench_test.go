package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler"
	"github.com/nereid-serving/nereid/services/worker"
)

const gateways = 4

// fleet is a control plane of the real services around the NATS server of
// another process. Nothing sends requests.
type fleet struct {
	b        *testing.B
	server   *exec.Cmd
	url      string
	root     string
	registry *registry.Registry
	leases   *bus.Bucket[*nereidv1.WorkerValue]
}

// BenchmarkControlPlane measures what the control plane takes with 1,000 models
// on 50 workers: from nothing, after the change of one model, when a worker
// comes, and when one goes without a word. NEREID_BIN is the program that runs
// the NATS server; NEREID_FLEET is another size, as MODELSxWORKERS.
func BenchmarkControlPlane(b *testing.B) {
	models, workers := 1000, 50
	if size := os.Getenv("NEREID_FLEET"); size != "" {
		if _, err := fmt.Sscanf(size, "%dx%d", &models, &workers); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		f := newFleet(b, models)
		f.phase("start", func() {
			f.startRegistry()
			for range gateways {
				f.startGateway()
			}
			f.startScheduler()
			var all sync.WaitGroup
			for i := range workers {
				all.Go(func() { f.startWorker(fmt.Sprintf("w%02d", i)) })
			}
			all.Wait()
			f.applied(workers)
		})
		const changes = 10
		f.phase("change", func() {
			for i := range changes {
				f.change(fmt.Sprintf("m%04d", i), i)
			}
		})
		f.phase("join", func() {
			f.startWorker("joins")
			f.applied(workers + 1)
		})
		f.phase("death", func() { f.die("w00") })
	}
}

func newFleet(b *testing.B, models int) *fleet {
	b.Helper()
	f := &fleet{b: b, root: b.TempDir()}
	for i := range models {
		dir := filepath.Join(f.root, fmt.Sprintf("m%04d", i))
		f.must(os.MkdirAll(filepath.Join(dir, "1"), 0o755))
		f.must(os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(idleModel), 0o600))
		f.must(os.WriteFile(filepath.Join(dir, "1", "weights"), []byte("first"), 0o600))
	}
	f.server = exec.CommandContext(b.Context(), os.Getenv("NEREID_BIN"), "bus", "--listen=127.0.0.1:0", "--log-format=json")
	log, err := f.server.StderrPipe()
	f.must(err)
	f.must(f.server.Start())
	b.Cleanup(func() { _ = f.server.Wait() })
	lines := bufio.NewScanner(log)
	address := regexp.MustCompile(`nats://[0-9.:]+`)
	for f.url == "" && lines.Scan() {
		f.url = address.FindString(lines.Text())
	}
	go func() { _, _ = io.Copy(io.Discard, log) }() // ends with the server
	store := f.connect()
	f.must(store.EnsureBuckets(b.Context()))
	f.leases, err = bus.NewBucket(store, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	f.must(err)
	return f
}

const idleModel = `
backend: "echo"
max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
`

func (f *fleet) must(err error) {
	if err != nil {
		f.b.Fatal(err)
	}
}

func (f *fleet) connect() *bus.Bus {
	b, err := bus.Open(f.b.Context(), bus.Config{URL: f.url})
	f.must(err)
	f.b.Cleanup(func() { _ = b.Close() })
	return b
}

// run runs a part until the benchmark's end.
func (f *fleet) run(part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.b.Context()))
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	f.b.Cleanup(func() {
		cancel()
		<-done
	})
}

func (f *fleet) startRegistry() {
	c := registry.Default()
	c.Repositories, c.Control, c.LoadModels, c.FileQuietPeriod = []string{f.root}, registry.ControlExplicit, []string{"*"}, 0
	r, err := registry.New(c, registry.Deps{Bus: f.connect()})
	f.must(err)
	f.registry = r
	f.run(r.Run)
}

func (f *fleet) startGateway() {
	c := gateway.Default()
	c.ID = strconv.FormatInt(time.Now().UnixNano(), 36)
	c.HTTPAddress, c.HTTPPort, c.GRPCAddress, c.GRPCPort = "127.0.0.1", 0, "127.0.0.1", 0
	g, err := gateway.New(c, gateway.Deps{
		Bus: f.connect(), Dispatcher: idle{}, Repository: f.registry, Statistics: func(string) gateway.StatisticsSource { return idle{} }, Clock: mono.New(),
		Pool: tensor.NewPool(0), Metrics: obs.NewMetrics("", nil), Log: zap.NewNop(),
	})
	f.must(err)
	f.run(g.Run)
}

func (f *fleet) startScheduler() {
	s, err := scheduler.New(scheduler.Default(), scheduler.Deps{
		Bus: f.connect(), Clock: mono.New(), Responder: idle{}, Metrics: obs.NewMetrics("", nil), Log: zap.NewNop(),
	})
	f.must(err)
	f.run(s.Run)
}

func (f *fleet) startWorker(id string) {
	c := worker.Default()
	c.ID, c.DrainTimeout = id, 0
	store, err := bus.Open(f.b.Context(), bus.Config{URL: f.url})
	f.must(err)
	nobody := export.NewEndpoint(export.Config{}).Caller()
	w, err := worker.New(c, worker.Deps{
		Bus: store, Scheduler: idle{}, Responder: idle{}, Calls: nobody, Control: nobody, Clock: mono.New(), Pool: tensor.NewPool(0),
	})
	f.must(err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.b.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	dies.Store(id, store)
	f.b.Cleanup(func() {
		_ = store.Close()
		cancel()
		<-done
	})
}

// dies has the workers' connections, by which they can be made to vanish.
var dies sync.Map

// applied waits until so many workers have applied what they are assigned.
func (f *fleet) applied(workers int) {
	done := make(map[string]bool)
	ctx, cancel := context.WithCancel(f.b.Context())
	defer cancel()
	for e := range f.leases.Watch(ctx) {
		if done[e.Key] = e.Value.GetAssignmentRevision() > 0 && e.Value.GetModelsRevision() > 0; !done[e.Key] {
			delete(done, e.Key)
		}
		if len(done) == workers {
			return
		}
	}
}

// change gives a model another content and waits until all know.
func (f *fleet) change(model string, round int) {
	f.must(os.WriteFile(filepath.Join(f.root, model, "1", "weights"), []byte("changed "+strconv.Itoa(round)), 0o600))
	f.must(f.registry.Load(f.b.Context(), model, "", nil))
}

// die ends a worker's connection and waits until all gateways know that it is
// gone, from the end of its lease on.
func (f *fleet) die(id string) {
	services, err := bus.NewBucket(f.connect(), bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	f.must(err)
	store, _ := dies.Load(id)
	f.must(store.(*bus.Bus).Close())
	ctx, cancel := context.WithCancel(f.b.Context())
	defer cancel()
	var gone uint64
	for e := range f.leases.Watch(ctx) {
		if e.Kind == bus.EventDelete && e.Key == id {
			gone = e.Revision
			break
		}
	}
	ended := time.Now()
	know := make(map[string]bool)
	for e := range services.Watch(ctx) {
		if e.Value.GetWorkersRevision() >= gone {
			know[e.Key] = true
		}
		if len(know) == gateways {
			break
		}
	}
	f.b.ReportMetric(time.Since(ended).Seconds()*1000, "death-heard-ms")
}

// phase measures the time of a part and what it costs the server and, until
// two seconds after it, all.
func (f *fleet) phase(name string, part func()) {
	cpu, io := f.cost()
	start := time.Now()
	part()
	f.b.ReportMetric(time.Since(start).Seconds()*1000, name+"-ms")
	<-time.After(2 * time.Second)
	after, bytes := f.cost()
	f.b.ReportMetric((after-cpu)*1000, name+"-nats-cpu-ms")
	f.b.ReportMetric((bytes-io)/1e6, name+"-nats-MB")
}

// cost is the server's processor time in seconds, and the bytes that it has read
// and written, its store's among them.
func (f *fleet) cost() (cpu, bytes float64) {
	dir := fmt.Sprintf("/proc/%d/", f.server.Process.Pid)
	stat, err := os.ReadFile(dir + "stat")
	f.must(err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')'):]))
	for _, i := range []int{12, 13} {
		ticks, err := strconv.ParseFloat(fields[i], 64)
		f.must(err)
		cpu += ticks / 100
	}
	counts, err := os.ReadFile(dir + "io")
	f.must(err)
	for line := range strings.Lines(string(counts)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name == "rchar" || name == "wchar" {
			n, err := strconv.ParseFloat(value, 64)
			f.must(err)
			bytes += n
		}
	}
	return cpu, bytes
}

// idle stands where requests would be: none come.
type idle struct{}

func (idle) Submit(*infer.Request) error               { return nil }
func (idle) Cancel(infer.RequestID)                    {}
func (idle) Respond(*infer.Response)                   {}
func (idle) Attach(uint64, infer.Held, infer.Executor) {}
func (idle) Detach(uint64)                             {}
func (idle) Grant(infer.Grant)                         {}
func (idle) UnitDone(infer.UnitDone)                   {}
func (idle) Return(*infer.Batch, error)                {}
func (idle) Retire(infer.InstanceID)                   {}
func (idle) InstanceFree(*infer.InstanceFree)          {}
func (idle) Statistics(context.Context, []infer.ModelRef) ([]infer.Statistics, error) {
	return nil, nil
}
