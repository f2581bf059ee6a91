package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// collector shows the workers of the node and what their processes take. It is
// a prometheus.Collector.
type collector struct {
	workers []*worker
	proc    string // a proc file system
}

// Describe describes nothing: processes come and go.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the workers and their processes.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, w := range c.workers {
		labels := prometheus.Labels{"worker": w.id, "device": w.device.Name}
		send := func(kind prometheus.ValueType, name, help string, value float64) {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc("nereid_node_"+name, help, nil, labels), kind, value)
		}
		s := w.status()
		send(prometheus.GaugeValue, "worker_up", "1 while the device's worker runs.", number(s.pid != 0))
		send(prometheus.GaugeValue, "worker_given_up", "1 when the worker has ended too often and is not started again.", number(s.givenUp))
		send(prometheus.CounterValue, "worker_starts_total", "How often the worker was started.", float64(s.starts))
		if u, err := readUsage(c.proc, s.pid); err == nil {
			send(prometheus.CounterValue, "worker_cpu_seconds_total", "Processor time of the worker's process, in seconds.", u.cpuSeconds)
			send(prometheus.GaugeValue, "worker_resident_bytes", "Memory of the worker's process, in bytes.", u.residentBytes)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// usage is what a process takes.
type usage struct{ cpuSeconds, residentBytes float64 }

// readUsage reads a process's line in its stat file: after the name in
// brackets, which may hold anything, utime, stime and rss are the fields 14, 15
// and 24, in ticks of a hundredth and in pages.
func readUsage(proc string, pid int) (u usage, err error) {
	const ticksPerSecond, utime, stime, rss = 100, 14 - 3, 15 - 3, 24 - 3
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) <= rss {
		return u, fmt.Errorf("a stat of %d fields", len(fields))
	}
	values := make([]float64, 0, 3)
	for _, at := range []int{utime, stime, rss} {
		v, err := strconv.ParseFloat(fields[at], 64)
		if err != nil {
			return u, err
		}
		values = append(values, v)
	}
	return usage{(values[0] + values[1]) / ticksPerSecond, values[2] * float64(os.Getpagesize())}, nil
}
