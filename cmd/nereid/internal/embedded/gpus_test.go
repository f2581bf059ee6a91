package embedded

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/node"
	"github.com/nereid-serving/nereid/libs/errs"
)

func TestGPUsOfASetting(t *testing.T) {
	for text, want := range map[string][]int{"auto": nil, "none": nil, "0": {0}, "2,0": {2, 0}} {
		c := Config{GPUs: text}
		if got, err := c.gpuNumbers(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "all", "0,0", "-1", "0,", "70000"} {
		c := Config{GPUs: text}
		if _, err := c.gpuNumbers(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--gpus="+text) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestDevicesOfASetting(t *testing.T) {
	log, _ := observer.New(zap.WarnLevel)
	c := Config{GPUs: "3,1"}
	got, err := c.devices(zap.New(log))
	if err != nil || len(got) != 3 || got[0].Kind != node.CPU || got[1].Name != "gpu3" || got[2].Number != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	c.GPUs = noGPUs
	if got, err := c.devices(zap.New(log)); err != nil || len(got) != 0 {
		t.Errorf("none: %+v, %v", got, err)
	}
}

// GPUs that are there are used if ONNX Runtime can use them; the driver's troubles are told.
func TestGPUsThatAreFound(t *testing.T) {
	handle := &mock.Device{
		GetMigModeFunc:               func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetUUIDFunc:                  func() (string, nvml.Return) { return "GPU-a", nvml.SUCCESS },
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA X1", nvml.SUCCESS },
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80}, nvml.SUCCESS },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
	}
	driver := func(init nvml.Return) *mock.Interface {
		return &mock.Interface{
			InitFunc:                   func() nvml.Return { return init },
			ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
			DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
			DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return handle, nvml.SUCCESS },
		}
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	dir := t.TempDir()
	c := Config{GPUs: autoGPUs}
	c.Worker.OnnxRuntimeLibrary = filepath.Join(dir, "libonnxruntime.so")
	if got, err := c.findGPUs(driver(nvml.SUCCESS)); errs.Of(err) != errs.LibraryMissing || got != nil || !strings.Contains(err.Error(), "make deps GPU=1") {
		t.Errorf("without the provider: %v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "libonnxruntime_providers_cuda.so"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.findGPUs(driver(nvml.SUCCESS)); err != nil || len(got) != 1 || got[0].UUID != "GPU-a" {
		t.Errorf("with it: %v, %v", got, err)
	}
	if got, err := c.findGPUs(driver(nvml.ERROR_LIBRARY_NOT_FOUND)); err != nil || got != nil {
		t.Errorf("without a driver: %v, %v", got, err)
	}
	if got, err := c.findGPUs(driver(nvml.ERROR_LIB_RM_VERSION_MISMATCH)); errs.Of(err) != errs.ConfigInvalid || got != nil {
		t.Errorf("with one that fails: %v, %v", got, err)
	}
}
