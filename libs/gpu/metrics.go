package gpu

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
)

// gauge is one of Triton's metrics of a GPU.
type gauge struct {
	name, help string
	kind       prometheus.ValueType
	read       func(nvml.Device) (float64, nvml.Return)
}

func gauges() []gauge {
	memory := func(part func(nvml.Memory) uint64) func(nvml.Device) (float64, nvml.Return) {
		return func(d nvml.Device) (float64, nvml.Return) {
			m, ret := d.GetMemoryInfo()
			return float64(part(m)), ret
		}
	}
	milli := func(read func(nvml.Device) (uint32, nvml.Return)) func(nvml.Device) (float64, nvml.Return) {
		return func(d nvml.Device) (float64, nvml.Return) {
			v, ret := read(d)
			return float64(v) / 1000, ret
		}
	}
	return []gauge{
		{"nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", prometheus.GaugeValue, func(d nvml.Device) (float64, nvml.Return) {
			u, ret := d.GetUtilizationRates()
			return float64(u.Gpu) / 100, ret
		}},
		{"nv_gpu_memory_total_bytes", "GPU total memory, in bytes", prometheus.GaugeValue, memory(func(m nvml.Memory) uint64 { return m.Total })},
		{"nv_gpu_memory_used_bytes", "GPU used memory, in bytes", prometheus.GaugeValue, memory(func(m nvml.Memory) uint64 { return m.Used })},
		{"nv_gpu_power_usage", "GPU power usage in watts", prometheus.GaugeValue, milli(nvml.Device.GetPowerUsage)},
		{"nv_gpu_power_limit", "GPU power management limit in watts", prometheus.GaugeValue, milli(nvml.Device.GetEnforcedPowerLimit)},
		{"nv_energy_consumption", "GPU energy consumption in joules since the driver started", prometheus.CounterValue, func(d nvml.Device) (float64, nvml.Return) {
			v, ret := d.GetTotalEnergyConsumption()
			return float64(v) / 1000, ret
		}},
	}
}

// Collector exports the GPUs' load under Triton's names. Values that a GPU does not report are
// omitted.
func (m *Machine) Collector() prometheus.Collector { return collector{m} }

type collector struct{ machine *Machine }

// Describe describes nothing: what a GPU reports depends on its make.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the GPUs.
func (c collector) Collect(out chan<- prometheus.Metric) {
	count, ret := c.machine.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return
	}
	for number := range count {
		handle, ret := c.machine.library.DeviceGetHandleByIndex(number)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := handle.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, g := range gauges() {
			if value, ret := g.read(handle); ret == nvml.SUCCESS {
				desc := prometheus.NewDesc(g.name, g.help, nil, prometheus.Labels{"gpu_uuid": uuid})
				out <- prometheus.MustNewConstMetric(desc, g.kind, value)
			}
		}
	}
}
