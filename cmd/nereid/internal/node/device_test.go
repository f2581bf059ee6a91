package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/gpu"
)

// nodes writes a directory as the kernel has it, of lists of cores by number.
func nodes(t *testing.T, lists map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, list := range lists {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "cpulist"), []byte(list+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEachNUMANodeWithCoresIsADevice(t *testing.T) {
	dir := nodes(t, map[string]string{"node10": "8", "node0": "0-1,4", "node1": "", "node2": "2-3"})
	got, err := Find(PerNUMA, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{Name: "cpu0", Cores: []int{0, 1, 4}}, {Name: "cpu2", Number: 2, Cores: []int{2, 3}}, {Name: "cpu10", Number: 10, Cores: []int{8}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, cpus := range []string{PerNUMA, PerMachine} {
		if got, err := Find(cpus, t.TempDir(), nil); err != nil || !cmp.Equal(got, wholeMachine()) {
			t.Errorf("%s of a machine without nodes: %v, %v", cpus, got, err)
		}
	}
	if got, err := Find(None, dir, nil); err != nil || len(got) != 0 {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, list := range []string{"3-1", "x", "1-"} {
		if _, err := Find(PerNUMA, nodes(t, map[string]string{"node0": list}), nil); err == nil || !strings.Contains(err.Error(), list) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

// A GPU that MIG divides is as many devices as it has parts, each with its own name.
func TestGPUsAreDevices(t *testing.T) {
	whole := func(uuid string) *mock.Device {
		return &mock.Device{
			GetMigModeFunc:                func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
			GetUUIDFunc:                   func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetNameFunc:                   func() (string, nvml.Return) { return "NVIDIA X1", nvml.SUCCESS },
			GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80}, nvml.SUCCESS },
			GetCudaComputeCapabilityFunc:  func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
			GetMaxMigDeviceCountFunc:      func() (int, nvml.Return) { return 7, nvml.SUCCESS },
			GetMigDeviceHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND },
		}
	}
	divided := whole("GPU-b")
	divided.GetMigModeFunc = func() (int, int, nvml.Return) {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	divided.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 || i > 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return whole(fmt.Sprintf("MIG-%d", i)), nvml.SUCCESS
	}
	all := []nvml.Device{whole("GPU-a"), divided}
	machine, err := gpu.Open(&mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(all), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return all[i], nvml.SUCCESS },
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Find(PerMachine, "", machine)
	want := []Device{
		{Name: "cpu"},
		{Name: "gpu0", Kind: GPU, UUID: "GPU-a", Product: "NVIDIA X1", Memory: 80},
		{Name: "gpu1-0", Kind: GPU, Number: 1, UUID: "MIG-0", Product: "NVIDIA X1", Memory: 80, Part: true},
		{Name: "gpu1-2", Kind: GPU, Number: 1, UUID: "MIG-2", Product: "NVIDIA X1", Memory: 80, Part: true},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// Who hides GPUs from CUDA gets no workers on them, and those on others count as the machine does.
func TestGPUsThatAreHiddenFromCUDA(t *testing.T) {
	all := func() []Device {
		return []Device{{Name: "cpu"}, {Name: "gpu0", Kind: GPU, UUID: "GPU-ab1"}, {Name: "gpu1", Kind: GPU, Number: 1, UUID: "GPU-cd2"}, {Name: "gpu2-0", Kind: GPU, Number: 2, UUID: "MIG-ef3", Part: true}}
	}
	for text, want := range map[string]string{"": "cpu gpu0 gpu1 gpu2-0", "1": "cpu gpu1", "GPU-a,MIG-ef3": "cpu gpu0 gpu2-0", "-1": "cpu"} {
		var names []string
		for _, d := range visible(all(), text) {
			names = append(names, d.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("with %q: %s, want %s", text, got, want)
		}
	}
	for i, want := range []string{"A=1 CUDA_VISIBLE_DEVICES=1", "A=1 CUDA_DEVICE_ORDER=PCI_BUS_ID", "A=1 CUDA_DEVICE_ORDER=PCI_BUS_ID", "A=1 CUDA_VISIBLE_DEVICES=MIG-ef3"} {
		if got := strings.Join(all()[i].environment([]string{"A=1", "CUDA_VISIBLE_DEVICES=1"}), " "); got != want {
			t.Errorf("%s: %s, want %s", all()[i].Name, got, want)
		}
	}
}

func TestTailKeepsTheLastLines(t *testing.T) {
	var passed output
	w := &tail{to: &passed}
	for i := range keptLines + 5 {
		if _, err := w.Write([]byte{byte('a' + i), '\n'}); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"in ", "parts\n", "unfinished"} {
		if _, err := w.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	lines := w.last()
	if len(lines) != keptLines || !slices.Equal(lines[keptLines-2:], []string{"in parts", "unfinished"}) {
		t.Errorf("kept %q", lines)
	}
	if n := strings.Count(passed.String(), "\n"); n != keptLines+7 {
		t.Errorf("%d lines passed on", n)
	}
	if rest := w.last(); len(rest) != 0 || cause(rest) != "it wrote nothing" {
		t.Errorf("left: %q", rest)
	}
}
