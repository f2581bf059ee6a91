package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// twoGPUs is a driver with two, of which the second has no power meter.
func twoGPUs() *mock.Interface {
	gpu := func(uuid string, watts nvml.Return) *mock.Device {
		return &mock.Device{
			GetUUIDFunc:                   func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetNameFunc:                   func() (string, nvml.Return) { return "NVIDIA X1", nvml.SUCCESS },
			GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80, Used: 8}, nvml.SUCCESS },
			GetUtilizationRatesFunc:       func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 25}, nvml.SUCCESS },
			GetPowerUsageFunc:             func() (uint32, nvml.Return) { return 1500, watts },
			GetEnforcedPowerLimitFunc:     func() (uint32, nvml.Return) { return 2000, watts },
			GetTotalEnergyConsumptionFunc: func() (uint64, nvml.Return) { return 3000, watts },
		}
	}
	all := []*mock.Device{gpu("GPU-a", nvml.SUCCESS), gpu("GPU-b", nvml.ERROR_NOT_SUPPORTED)}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(all), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return all[i], nvml.SUCCESS },
	}
}

func TestGPUsAreFoundAndShown(t *testing.T) {
	library, err := OpenNVML(twoGPUs())
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	got, err := Find(PerMachine, "", library)
	want := []Device{
		{Name: "cpu"},
		{Name: "gpu0", Kind: GPU, UUID: "GPU-a", Product: "NVIDIA X1", Memory: 80},
		{Name: "gpu1", Kind: GPU, Number: 1, UUID: "GPU-b", Product: "NVIDIA X1", Memory: 80},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(library)
	shown := `
		# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
		# TYPE nv_gpu_utilization gauge
		nv_gpu_utilization{gpu_uuid="GPU-a"} 0.25
		nv_gpu_utilization{gpu_uuid="GPU-b"} 0.25
		# HELP nv_gpu_power_usage GPU power usage in watts
		# TYPE nv_gpu_power_usage gauge
		nv_gpu_power_usage{gpu_uuid="GPU-a"} 1.5
		# HELP nv_energy_consumption GPU energy consumption in joules since the driver started
		# TYPE nv_energy_consumption counter
		nv_energy_consumption{gpu_uuid="GPU-a"} 3
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(shown), "nv_gpu_utilization", "nv_gpu_power_usage", "nv_energy_consumption"); err != nil {
		t.Error(err)
	}
}

func TestMachineWithoutADriverHasNoGPUs(t *testing.T) {
	for ret, want := range map[nvml.Return]bool{nvml.ERROR_LIBRARY_NOT_FOUND: true, nvml.ERROR_UNKNOWN: false} {
		library, err := OpenNVML(&mock.Interface{InitFunc: func() nvml.Return { return ret }})
		if library != nil || (err == nil) != want {
			t.Errorf("%v: %v, %v", ret, library, err)
		}
	}
}

func TestGPUThatCannotBeReadIsAnError(t *testing.T) {
	broken := twoGPUs()
	broken.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	library, err := OpenNVML(broken)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := library.List(); err == nil || !strings.Contains(err.Error(), "GPU 0") || !strings.Contains(err.Error(), "--gpu-workers=none") {
		t.Error(err)
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
