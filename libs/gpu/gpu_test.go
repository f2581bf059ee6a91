package gpu_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/gpu"
)

// twoGPUs is a driver with two, of which the second has no power meter.
func twoGPUs() *mock.Interface {
	one := func(uuid string, watts nvml.Return) *mock.Device {
		return &mock.Device{
			GetMigModeFunc:                func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
			GetCudaComputeCapabilityFunc:  func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
			GetUUIDFunc:                   func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetNameFunc:                   func() (string, nvml.Return) { return "NVIDIA X1", nvml.SUCCESS },
			GetMemoryInfoFunc:             func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80, Used: 8}, nvml.SUCCESS },
			GetUtilizationRatesFunc:       func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 25}, nvml.SUCCESS },
			GetPowerUsageFunc:             func() (uint32, nvml.Return) { return 1500, watts },
			GetEnforcedPowerLimitFunc:     func() (uint32, nvml.Return) { return 2000, watts },
			GetTotalEnergyConsumptionFunc: func() (uint64, nvml.Return) { return 3000, watts },
		}
	}
	all := []*mock.Device{one("GPU-a", nvml.SUCCESS), one("GPU-b", nvml.ERROR_NOT_SUPPORTED)}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(all), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return all[i], nvml.SUCCESS },
	}
}

func TestGPUsAreFoundAndShown(t *testing.T) {
	library, err := gpu.Open(twoGPUs())
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	got, err := library.Devices()
	want := []gpu.Device{
		{Part: -1, UUID: "GPU-a", Product: "NVIDIA X1", Memory: 80, Capability: "9.0"},
		{Number: 1, Part: -1, UUID: "GPU-b", Product: "NVIDIA X1", Memory: 80, Capability: "9.0"},
	}
	if !slices.Equal(got, want) || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(library.Collector())
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
		library, err := gpu.Open(&mock.Interface{InitFunc: func() nvml.Return { return ret }})
		if library != nil || (err == nil) != want {
			t.Errorf("%v: %v, %v", ret, library, err)
		}
	}
}

func TestGPUThatCannotBeReadIsAnError(t *testing.T) {
	broken := twoGPUs()
	broken.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	library, err := gpu.Open(broken)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := library.Devices(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "GPU 0") || !strings.Contains(err.Error(), "nvidia-smi") {
		t.Error(err)
	}
}

// at is a time after so many seconds.
func at(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }

func TestErrorsOfTheDriverThatAreTheDevices(t *testing.T) {
	h := gpu.NewHealth()
	for _, xid := range []uint64{13, 31, 43, 45, 68, 69, 109} {
		h.Error(at(0), xid)
	}
	if got := h.Problem(at(0)); got != "" {
		t.Errorf("after errors of programs: %s", got)
	}
	h.Error(at(1), 79)
	h.Error(at(200), 79)
	for _, second := range []int{1, 700, 799} {
		if got := h.Problem(at(second)); !strings.Contains(got, "Xid 79") {
			t.Errorf("after %d s: %q, want sick", second, got)
		}
	}
	if got := h.Problem(at(800)); got != "" {
		t.Errorf("ten minutes after the last error: %s", got)
	}
}

func TestProblemsThatTheDeviceTells(t *testing.T) {
	for name, tt := range map[string]struct {
		sample gpu.Sample
		holds  int // seconds after the last such sample
		says   string
	}{
		"lost":    {gpu.Sample{Lost: true, Uncorrected: -1}, 60, "does not answer"},
		"broken":  {gpu.Sample{RepairFailed: true, Uncorrected: -1}, 60, "replace it"},
		"pending": {gpu.Sample{RepairPending: true, Uncorrected: -1}, 60, "reset it"},
		"memory":  {gpu.Sample{Uncorrected: 8}, 600, "memory errors"},
	} {
		t.Run(name, func(t *testing.T) {
			h := gpu.NewHealth()
			h.Sample(at(0), gpu.Sample{Uncorrected: 7}) // of before it was looked at
			if got := h.Problem(at(0)); got != "" {
				t.Fatalf("at first %s", got)
			}
			h.Sample(at(1), tt.sample)
			if got := h.Problem(at(tt.holds)); !strings.Contains(got, tt.says) {
				t.Errorf("%q, want %q", got, tt.says)
			}
			h.Sample(at(2), gpu.Sample{Uncorrected: -1})
			if got := h.Problem(at(1 + tt.holds)); got != "" {
				t.Errorf("it is still %s", got)
			}
		})
	}
}

func TestThrottledForAWhile(t *testing.T) {
	h := gpu.NewHealth()
	hot := gpu.Sample{Uncorrected: -1, Throttled: []string{"hw_thermal"}}
	for second := range 10 {
		h.Sample(at(second), hot)
	}
	if got := h.Throttled(at(9)); len(got) != 0 {
		t.Errorf("after 9 s: %v", got)
	}
	if got := h.Throttled(at(10)); !slices.Equal(got, []string{"hw_thermal"}) || h.Problem(at(10)) != "" {
		t.Errorf("after 10 s: %v, sick: %q", got, h.Problem(at(10)))
	}
	h.Sample(at(11), gpu.Sample{Uncorrected: -1})
	h.Sample(at(12), hot)
	if got := h.Throttled(at(21)); len(got) != 0 {
		t.Errorf("after a pause: %v", got)
	}
}

func TestProbe(t *testing.T) {
	driver := twoGPUs()
	device, _ := driver.DeviceGetHandleByIndexFunc(0)
	d := device.(*mock.Device)
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 3, nvml.SUCCESS }
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, true, nvml.SUCCESS }
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) { return 0x20 | 0x80 | 0x4, nvml.SUCCESS }
	freed := false
	driver.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				return nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 48}, nvml.SUCCESS
			},
			FreeFunc: func() nvml.Return { freed = true; return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	driver.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if uuid == "GPU-a" {
			return d, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	m, err := gpu.Open(driver)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Probe(0, "GPU-z"); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "GPU-z") {
		t.Errorf("a GPU that is not there: %v", err)
	}
	p, err := m.Probe(5, "GPU-a")
	if err != nil {
		t.Fatal(err)
	}
	s := p.Sample()
	if s.Lost || s.Uncorrected != 3 || !s.RepairPending || !s.RepairFailed || !slices.Equal(s.Throttled, []string{"sw_thermal", "hw_power"}) {
		t.Errorf("%+v", s)
	}
	if used, total := p.Memory(); used != 8 || total != 80 {
		t.Errorf("%d of %d bytes", used, total)
	}
	if xid := p.Errors(time.Second); xid != 48 || !p.Reports() {
		t.Errorf("Xid %d", xid)
	}
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	if !p.Sample().Lost {
		t.Error("a GPU that is lost is not noticed")
	}
	if p.Close(); !freed {
		t.Error("the events are not given back")
	}
}
