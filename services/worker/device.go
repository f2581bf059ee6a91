package worker

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/gpu"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/region"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/worker/internal/memory"
)

// device is what the worker knows about its device: for a GPU what the driver reports, for CPUs nothing. It is safe
// for concurrent use, and implements prometheus.Collector.
type device struct {
	of      Device
	log     *zap.Logger
	machine *gpu.Machine // nil without a driver, like probe
	probe   *gpu.Probe
	product string

	mu        sync.Mutex
	problem   string            // why it is sick; guarded by mu
	throttled []string          // guarded by mu
	xids      map[uint64]uint64 // errors that the driver reported, by number; guarded by mu
}

// openDevice queries the driver for a GPU. If the driver is not available, the worker runs without its information.
func openDevice(d Device, library nvml.Interface, log *zap.Logger) *device {
	v := &device{of: d, log: log, xids: make(map[uint64]uint64)}
	if d.Kind != modelconfig.KindGPU {
		return v
	}
	machine, err := gpu.Open(library)
	if err == nil && machine != nil {
		v.machine = machine
		v.probe, err = machine.Probe(int(d.Number), d.UUID)
	}
	if v.probe != nil {
		v.product = v.probe.Product()
		return v
	}
	fields := []zap.Field{zap.Int32("gpu", d.Number)}
	if err != nil {
		fields = append(fields, obs.Err(err)...)
	}
	log.Warn("NVIDIA's driver tells nothing of the GPU: its health and memory are not watched", fields...)
	return v
}

func (v *device) close() {
	if v.probe != nil {
		v.probe.Close()
	}
	if v.machine != nil {
		v.machine.Close()
	}
}

// used returns how much of the device's memory is in use by models and everything else, in bytes: for a GPU as the
// driver reports it, otherwise for this process.
func (v *device) used() uint64 {
	if v.probe != nil {
		if used, total := v.probe.Memory(); total > 0 {
			return used
		}
	}
	return memory.Linux().Resident()
}

// budget returns how much of the device's memory models may use: of a GPU's memory if the driver reports it.
func (v *device) budget(c Config) uint64 {
	bytes, _ := c.memoryBudget() // validated
	percent, part := strings.CutSuffix(c.MemoryBudget, "%")
	if v.of.Kind != modelconfig.KindGPU || !part {
		return bytes
	}
	if v.probe == nil {
		return 0 // the total is unknown
	}
	n, _ := strconv.ParseUint(percent, 10, 8) // the same
	_, total := v.probe.Memory()
	return total / 100 * n
}

// value returns what the worker publishes about its device.
func (v *device) value() *nereidv1.WorkerDevice {
	d := deviceValue(v.of)
	if v.of.Kind == modelconfig.KindGPU {
		d.Host = region.Host()
	}
	if v.probe != nil {
		_, d.MemoryBytes = v.probe.Memory()
		d.Name = v.product
	}
	return d
}

// sick returns why the device must not be used; empty if it is healthy.
func (v *device) sick() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.problem
}

// watchPeriod is how often a GPU's health is checked.
const watchPeriod = time.Second

// watch monitors the GPU until ctx is done, and calls changed when the GPU has become sick or healthy.
func (v *device) watch(ctx context.Context, changed func()) {
	if v.probe == nil {
		return
	}
	health := gpu.NewHealth()
	for ctx.Err() == nil {
		if !v.probe.Reports() {
			lifecycle.Pause(ctx, watchPeriod)
		}
		v.look(health, time.Now(), v.probe.Errors(watchPeriod), changed)
	}
}

// look evaluates an error of the driver, if there was one, and a sample of the GPU's state.
func (v *device) look(health *gpu.Health, now time.Time, xid uint64, changed func()) {
	if xid != 0 {
		v.log.Warn("the driver tells of an error of the GPU", zap.Uint64("xid", xid), zap.String("gpu_uuid", v.probe.UUID))
		health.Error(now, xid)
	}
	health.Sample(now, v.probe.Sample())
	problem := health.Problem(now)
	v.mu.Lock()
	was := v.problem
	v.problem, v.throttled = problem, health.Throttled(now)
	if xid != 0 {
		v.xids[xid]++
	}
	v.mu.Unlock()
	if problem == was {
		return
	}
	if problem != "" {
		v.log.Error("the GPU is sick: its models go to others", zap.String("problem", problem), zap.String("gpu_uuid", v.probe.UUID))
	} else {
		v.log.Info("the GPU is well again", zap.String("gpu_uuid", v.probe.UUID))
	}
	changed()
}

// Describe sends nothing: the metrics depend on the GPU.
func (v *device) Describe(chan<- *prometheus.Desc) {}

// Collect sends the GPU's health.
func (v *device) Collect(out chan<- prometheus.Metric) {
	if v.probe == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	send := func(kind prometheus.ValueType, name, help string, value float64, label ...string) {
		labels := prometheus.Labels{"gpu_uuid": v.probe.UUID}
		if len(label) == 2 {
			labels[label[0]] = label[1]
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("nereid_worker_gpu_"+name, help, nil, labels), kind, value)
	}
	sick := 0.0
	if v.problem != "" {
		sick = 1
	}
	send(prometheus.GaugeValue, "sick", "1 while the GPU is sick and its models go to others.", sick)
	for _, reason := range v.throttled {
		send(prometheus.GaugeValue, "throttled", "1 for each reason for which the GPU is slower than it could be, for longer than a moment.", 1, "reason", reason)
	}
	for xid, count := range v.xids {
		send(prometheus.CounterValue, "xid_errors_total", "Errors of the GPU that the driver told of, by NVIDIA's number.", float64(count), "xid", strconv.FormatUint(xid, 10))
	}
}
