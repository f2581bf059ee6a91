package node

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/gpu"
)

// Kind is a kind of device.
type Kind uint8

// The kinds of devices.
const (
	CPU Kind = iota
	GPU
)

// String is the kind's word in flags of workers.
func (k Kind) String() string {
	if k == GPU {
		return "gpu"
	}
	return "cpu"
}

// Device is one that gets a worker.
type Device struct {
	// Name distinguishes it on its machine: cpu, cpu1, gpu0.
	Name string
	Kind Kind
	// Number counts the devices of a kind from 0.
	Number int
	// Cores are those that its worker may use; empty is all.
	Cores []int
	// UUID and Product are a GPU's, and Memory is its memory in bytes.
	UUID, Product string
	Memory        uint64
	// Part says that MIG makes it a device of its own: it is the only one that its worker
	// sees.
	Part bool
}

// visibleGPUs is the variable by which CUDA is told which GPUs there are.
const visibleGPUs = "CUDA_VISIBLE_DEVICES"

// environment adapts that of a worker: one on a GPU sees all of them, by the machine's numbers,
// and one on a part of a GPU that part alone.
func (d Device) environment(of []string) []string {
	if d.Kind != GPU {
		return of
	}
	of = slices.DeleteFunc(of, func(v string) bool { return strings.HasPrefix(v, visibleGPUs+"=") })
	if d.Part {
		return append(of, visibleGPUs+"="+d.UUID)
	}
	return append(of, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
}

// visible leaves out the GPUs that CUDA is told not to see, by their numbers or the beginnings
// of their UUIDs; an empty text hides none.
func visible(devices []Device, text string) []Device {
	if text == "" {
		return devices
	}
	names := strings.Split(text, ",")
	return slices.DeleteFunc(devices, func(d Device) bool {
		return d.Kind == GPU && !slices.ContainsFunc(names, func(name string) bool {
			return name == strconv.Itoa(d.Number) || name != "" && strings.HasPrefix(d.UUID, name)
		})
	})
}

// wholeMachine is the CPU as one device.
func wholeMachine() []Device { return []Device{{Name: "cpu"}} }

// NUMANodes are the CPUs of a machine as one device for each NUMA node that has
// cores, read from a directory such as /sys/devices/system/node. A machine
// without any is one device.
func NUMANodes(dir string) ([]Device, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "node[0-9]*"))
	if err != nil {
		return nil, err
	}
	var devices []Device
	for _, path := range paths {
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "node"))
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(path, "cpulist"))
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot read the cores of NUMA node %d: %v; --cpu-workers=machine does without", number, err)
		}
		cores, err := parseCores(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, err
		}
		if len(cores) > 0 { // else it is memory alone
			devices = append(devices, Device{Name: "cpu" + strconv.Itoa(number), Number: number, Cores: cores})
		}
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Compare(a.Number, b.Number) })
	if len(devices) == 0 {
		return wholeMachine(), nil
	}
	return devices, nil
}

// parseCores reads a list such as 0-3,8.
func parseCores(text string) ([]int, error) {
	var list []int
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(last)
		}
		if err != nil || a > b {
			return nil, errs.New(errs.ConfigInvalid, "%q is no list of cores such as 0-3", text)
		}
		for n := a; n <= b; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}

// How the CPUs of a machine become devices, by the words of --cpu-workers.
const (
	PerMachine = "machine"
	PerNUMA    = "numa"
	None       = "none"
)

// Find lists a machine's devices: its CPUs as asked, and its GPUs, which nil
// leaves out.
func Find(cpus, nodes string, gpus *gpu.Machine) ([]Device, error) {
	var devices []Device
	var err error
	switch cpus {
	case PerMachine:
		devices = wholeMachine()
	case PerNUMA:
		if devices, err = NUMANodes(nodes); err != nil {
			return nil, err
		}
	}
	if gpus == nil {
		return devices, nil
	}
	found, err := gpus.Devices()
	for _, d := range found {
		devices = append(devices, Device{Name: d.Name(), Kind: GPU, Number: d.Number, UUID: d.UUID, Product: d.Product, Memory: d.Memory, Part: d.Part >= 0})
	}
	return visible(devices, os.Getenv(visibleGPUs)), err
}
