package worker

import (
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/gpu"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// driver knows one GPU of 1000 bytes, of which 400 are used.
func driver(handle *mock.Device) *mock.Interface {
	*handle = mock.Device{
		GetUUIDFunc:       func() (string, nvml.Return) { return "GPU-a", nvml.SUCCESS },
		GetNameFunc:       func() (string, nvml.Return) { return "NVIDIA X1", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 1000, Used: 400}, nvml.SUCCESS },
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		},
		GetRemappedRowsFunc:              func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS },
		GetRetiredPagesPendingStatusFunc: func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) { return nvml.ClocksEventReasonSwThermalSlowdown, nvml.SUCCESS },
	}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return handle, nvml.SUCCESS },
		EventSetCreateFunc:         func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
	}
}

func TestMemoryOfAGPU(t *testing.T) {
	var handle mock.Device
	d := openDevice(Device{Kind: modelconfig.KindGPU}, driver(&handle), zap.NewNop())
	defer d.close()
	c := Default()
	if got := d.budget(c); got != 900 {
		t.Errorf("90%% are %d bytes", got)
	}
	c.MemoryBudget = "64KiB"
	if got := d.budget(c); got != 64<<10 {
		t.Errorf("64 KiB are %d bytes", got)
	}
	if v := d.value(); d.used() != 400 || v.GetMemoryBytes() != 1000 || v.GetName() != "NVIDIA X1" {
		t.Errorf("%d bytes used, %v", d.used(), v)
	}
}

func TestDevicesWithoutADriver(t *testing.T) {
	absent := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }}
	for _, kind := range []modelconfig.DeviceKind{modelconfig.KindGPU, modelconfig.KindCPU} {
		d := openDevice(Device{Kind: kind}, absent, zap.NewNop())
		budget := d.budget(Default())
		if d.used() == 0 || d.sick() != "" || (budget == 0) != (kind == modelconfig.KindGPU) {
			t.Errorf("kind %v: %d bytes used of %d, %q", kind, d.used(), budget, d.sick())
		}
		d.watch(t.Context(), nil) // returns
		d.close()
	}
}

// A GPU that becomes sick is told of once, and once when it is well.
func TestSickGPU(t *testing.T) {
	var handle mock.Device
	d := openDevice(Device{Kind: modelconfig.KindGPU}, driver(&handle), zap.NewNop())
	defer d.close()
	registry, told := prometheus.NewRegistry(), 0
	registry.MustRegister(d)
	health, now := gpu.NewHealth(), time.Unix(1_000_000, 0)
	look := func(after time.Duration, xid uint64) {
		now = now.Add(after)
		d.look(health, now, xid, func() { told++ })
	}
	look(0, 31) // of a program
	if d.sick() != "" || told != 0 {
		t.Errorf("told %d times: %s", told, d.sick())
	}
	look(time.Second, 79)
	look(time.Minute, 79)
	if !strings.Contains(d.sick(), "Xid 79") || told != 1 {
		t.Errorf("told %d times: %s", told, d.sick())
	}
	shown := `
		# HELP nereid_worker_gpu_sick 1 while the GPU is sick and its models go to others.
		# TYPE nereid_worker_gpu_sick gauge
		nereid_worker_gpu_sick{gpu_uuid="GPU-a"} 1
		# HELP nereid_worker_gpu_throttled 1 for each reason for which the GPU is slower than it could be, for longer than a moment.
		# TYPE nereid_worker_gpu_throttled gauge
		nereid_worker_gpu_throttled{gpu_uuid="GPU-a",reason="sw_thermal"} 1
		# HELP nereid_worker_gpu_xid_errors_total Errors of the GPU that the driver told of, by NVIDIA's number.
		# TYPE nereid_worker_gpu_xid_errors_total counter
		nereid_worker_gpu_xid_errors_total{gpu_uuid="GPU-a",xid="31"} 1
		nereid_worker_gpu_xid_errors_total{gpu_uuid="GPU-a",xid="79"} 2
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(shown)); err != nil {
		t.Error(err)
	}
	look(time.Hour, 0)
	if d.sick() != "" || told != 2 {
		t.Errorf("an hour later, told %d times: %s", told, d.sick())
	}
}
