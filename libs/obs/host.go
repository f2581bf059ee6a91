package obs

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Host exports the machine's load under Triton's names: nv_cpu_utilization,
// nv_cpu_memory_total_bytes and nv_cpu_memory_used_bytes. It is a prometheus.Collector and safe
// for concurrent use.
type Host struct {
	proc        string
	cpu         ticks // at the last reading; owned by the caller of read
	utilization prometheus.Gauge
	total, used prometheus.Gauge
}

// NewHost reads the machine's state from a proc file system, such as /proc,
// for the first time. Where there is none, as on systems other than Linux, it
// fails with the reason config_invalid.
func NewHost(proc string) (*Host, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "nv_cpu_" + name, Help: help})
	}
	h := &Host{
		proc:        proc,
		utilization: gauge("utilization", "CPU utilization rate [0.0 - 1.0]"),
		total:       gauge("memory_total_bytes", "CPU total memory (RAM), in bytes"),
		used:        gauge("memory_used_bytes", "CPU used memory (RAM), in bytes"),
	}
	if err := h.read(); err != nil {
		return nil, err
	}
	h.utilization.Set(0) // no interval has passed yet
	return h, nil
}

// Run reads the state at each interval until ctx is done, or until it cannot
// be read: then the gauges stay as they are.
func (h *Host) Run(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := h.read(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *Host) read() error {
	cpu, err := parse(h.proc, "stat", parseStat)
	if err != nil {
		return err
	}
	memory, err := parse(h.proc, "meminfo", parseMeminfo)
	if err != nil {
		return err
	}
	h.utilization.Set(cpu.since(h.cpu))
	h.cpu = cpu
	h.total.Set(float64(memory.total))
	h.used.Set(float64(memory.used()))
	return nil
}

func parse[T any](proc, name string, read func([]byte) (T, bool)) (v T, err error) {
	path := filepath.Join(proc, name)
	text, err := os.ReadFile(path)
	if err != nil {
		return v, errs.Wrap(errs.ConfigInvalid, err, "the load of the machine cannot be read; --allow-cpu-metrics=false does without")
	}
	v, ok := read(text)
	if !ok {
		return v, errs.New(errs.ConfigInvalid, "%s does not show the load of the machine as Linux does; --allow-cpu-metrics=false does without", path)
	}
	return v, nil
}

// Describe is half of a prometheus.Collector.
func (h *Host) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(h, out) }

// Collect is the other half.
func (h *Host) Collect(out chan<- prometheus.Metric) {
	for _, g := range []prometheus.Gauge{h.utilization, h.total, h.used} {
		g.Collect(out)
	}
}
