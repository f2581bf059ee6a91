package gpu

import (
	"fmt"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Machine provides the GPUs of a machine. It is safe for concurrent use.
type Machine struct{ library nvml.Interface }

// Open loads the library. A machine without it has no such GPUs: then both
// results are nil. Errors have the reason config_invalid.
func Open(library nvml.Interface) (*Machine, error) {
	switch ret := library.Init(); ret {
	case nvml.SUCCESS:
		return &Machine{library}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, nil //nolint:nilnil // there is nothing to open, which is common
	default:
		return nil, errs.Wrap(errs.ConfigInvalid, ret, "cannot ask NVIDIA's driver for GPUs (%v): look at nvidia-smi", ret)
	}
}

// Close releases the library.
func (m *Machine) Close() { _ = m.library.Shutdown() } // the process ends anyway

// Device is a GPU, or a MIG device, which is a part of one.
type Device struct {
	// Number is the GPU's as the driver counts them, from 0; parts have that of their GPU.
	Number int
	// Part counts the parts of a GPU from 0; it is -1 for a whole one.
	Part int
	// UUID is the driver's name for it, by which CUDA finds it too, and Product its make's.
	UUID, Product string
	// Memory is its memory, in bytes.
	Memory uint64
	// Capability is the compute capability, such as 9.0.
	Capability string
}

// Name distinguishes the device on its machine: gpu0, or gpu0-1 for a part.
func (d Device) Name() string {
	if d.Part < 0 {
		return "gpu" + strconv.Itoa(d.Number)
	}
	return fmt.Sprintf("gpu%d-%d", d.Number, d.Part)
}

// Devices lists the GPUs in the order of their numbers, and of one that MIG divides its parts
// instead. Errors have the reason config_invalid.
func (m *Machine) Devices() ([]Device, error) {
	count, ret := m.library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed(ret, "count the GPUs")
	}
	var devices []Device
	for number := range count {
		handle, ret := m.library.DeviceGetHandleByIndex(number)
		if ret != nvml.SUCCESS {
			return nil, failed(ret, fmt.Sprintf("look at GPU %d", number))
		}
		parts, err := m.parts(handle, number)
		if err != nil {
			return nil, err
		}
		if parts == nil {
			whole, err := describe(handle, number, -1)
			if err != nil {
				return nil, err
			}
			parts = []Device{whole}
		}
		devices = append(devices, parts...)
	}
	return devices, nil
}

// parts lists those of a GPU, nil if it is whole.
func (m *Machine) parts(handle nvml.Device, number int) ([]Device, error) {
	if !divided(handle) {
		return nil, nil
	}
	most, ret := handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, failed(ret, fmt.Sprintf("count the MIG devices of GPU %d", number))
	}
	list := []Device{}
	for i := range most {
		part, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, failed(ret, fmt.Sprintf("look at MIG device %d of GPU %d", i, number))
		}
		d, err := describe(part, number, i)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// divided reports whether MIG divides a GPU: most know no such mode.
func divided(handle nvml.Device) bool {
	mode, _, ret := handle.GetMigMode()
	return ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
}

func describe(handle nvml.Device, number, part int) (Device, error) {
	d := Device{Number: number, Part: part}
	uuid, ret := handle.GetUUID()
	if ret == nvml.SUCCESS {
		d.UUID = uuid
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
	if major, minor, ret := handle.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		d.Capability = fmt.Sprintf("%d.%d", major, minor)
	}
	return d, nil
}

func failed(ret nvml.Return, doing string) error {
	return errs.Wrap(errs.ConfigInvalid, ret, "cannot %s (%v): look at nvidia-smi", doing, ret)
}

// handle finds a device by its UUID, or where that is empty by its number.
func (m *Machine) handle(number int, uuid string) (nvml.Device, error) {
	find := func() (nvml.Device, nvml.Return) { return m.library.DeviceGetHandleByIndex(number) }
	if uuid != "" {
		find = func() (nvml.Device, nvml.Return) { return m.library.DeviceGetHandleByUUID(uuid) }
	}
	handle, ret := find()
	if ret != nvml.SUCCESS {
		return nil, failed(ret, fmt.Sprintf("look at GPU %d %s", number, uuid))
	}
	return handle, nil
}
