package node

import (
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/errs"
)

// GPUs are those of a machine.
type GPUs interface {
	// List gives them in the order of their numbers; none is no error.
	List() ([]Device, error)
}

// NVML finds GPUs by NVIDIA's management library, and shows how busy they are
// under Triton's names. It is a prometheus.Collector.
type NVML struct{ library nvml.Interface }

// OpenNVML loads the library. A machine without it has no such GPUs: then both
// results are nil.
func OpenNVML(library nvml.Interface) (*NVML, error) {
	switch ret := library.Init(); ret {
	case nvml.SUCCESS:
		return &NVML{library}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, nil //nolint:nilnil // there is nothing to open, which is common
	default:
		return nil, errs.Wrap(errs.ConfigInvalid, ret, "cannot ask the driver for GPUs (%v): look at nvidia-smi, or leave them out with --gpu-workers=none", ret)
	}
}

// Close gives the library back.
func (n *NVML) Close() { _ = n.library.Shutdown() } // the process ends anyway

// List implements [GPUs].
func (n *NVML) List() ([]Device, error) {
	count, ret := n.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed(ret, "count the GPUs")
	}
	devices := make([]Device, 0, count)
	for number := range count {
		d, err := n.device(number)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func (n *NVML) device(number int) (Device, error) {
	d := Device{Name: "gpu" + strconv.Itoa(number), Kind: GPU, Number: number}
	handle, ret := n.library.DeviceGetHandleByIndex(number)
	if ret == nvml.SUCCESS {
		d.UUID, ret = handle.GetUUID()
	}
	if ret == nvml.SUCCESS {
		d.Product, ret = handle.GetName()
	}
	if ret != nvml.SUCCESS {
		return d, failed(ret, fmt.Sprintf("look at GPU %d", number))
	}
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return d, failed(ret, fmt.Sprintf("read the memory of GPU %d", number))
	}
	d.Memory = memory.Total
	return d, nil
}

func failed(ret nvml.Return, doing string) error {
	return errs.Wrap(errs.ConfigInvalid, ret, "cannot %s (%v): look at nvidia-smi, or leave GPUs out with --gpu-workers=none", doing, ret)
}

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

// Describe describes nothing: what a GPU reports depends on its make.
func (n *NVML) Describe(chan<- *prometheus.Desc) {}

// Collect reads the GPUs. What one does not report is not shown.
func (n *NVML) Collect(out chan<- prometheus.Metric) {
	count, ret := n.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return
	}
	for number := range count {
		handle, ret := n.library.DeviceGetHandleByIndex(number)
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
