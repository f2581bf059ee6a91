//go:build cgo

package onnxruntime_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

// needsCUDA skips a test where there is neither a GPU nor what stands for one: make cuda-test
// gives the directory of CUDA's libraries.
func needsCUDA(t *testing.T) (libraries string) {
	t.Helper()
	libraries = os.Getenv("NEREID_CUDA_LIBRARIES")
	if libraries == "" {
		t.Skip("without CUDA: run make cuda-test")
	}
	return libraries
}

// openGPU opens the backend with CUDA's libraries, and checks at the end that all memory has
// come back, the pinned too.
func openGPU(t *testing.T) *onnxruntime.Backend {
	t.Helper()
	pool, pinned := tensor.NewPool(64<<20), backend.NewPinnedMemory(32<<20)
	b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: pool, CUDALibraries: needsCUDA(t), Pinned: pinned})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := b.Held(); n != 0 {
			t.Errorf("%d outputs of the runtime were not released", n)
		}
		if _, used := pinned.Bytes(); used != 0 || pool.Stats().InUse != 0 {
			t.Errorf("%d bytes of pinned memory and %d of mapped memory were not given back", used, pool.Stats().InUse)
		}
	})
	return b
}

// onGPU has a version's instances run on the first GPU.
func onGPU(v backend.Version) backend.Version {
	v.Device = backend.Device{Kind: modelconfig.KindGPU}
	return v
}

// only are parameters with which nothing of a model runs on CPUs instead.
func only(parameters map[string]string) map[string]string {
	all := map[string]string{"session.disable_cpu_ep_fallback": "1"}
	maps.Copy(all, parameters)
	return all
}

// product multiplies rows of three numbers by a matrix: y0 = x0+3x1+5x2, y1 = 2x0+4x1+6x2.
func product() onnxmodel.Model {
	return onnxmodel.Model{Graph: onnxmodel.Graph{
		Nodes:        []onnxmodel.Node{{Op: "MatMul", Inputs: []string{"INPUT0", "w"}, Outputs: []string{"OUTPUT0"}}},
		Inputs:       []onnxmodel.Value{{Name: "INPUT0", Type: tensor.FP32, Dims: onnxmodel.Dims("b", 3)}},
		Outputs:      []onnxmodel.Value{{Name: "OUTPUT0", Type: tensor.FP32, Dims: onnxmodel.Dims("b", 2)}},
		Initializers: []onnxmodel.Tensor{{Name: "w", Type: tensor.FP32, Shape: tensor.Shape{3, 2}, Raw: []byte(pack([]float32{1, 2, 3, 4, 5, 6}))}},
	}}
}

func products(parameters map[string]string) *modelconfig.Config {
	c := config(64, ios(io("INPUT0", tensor.FP32, 3)), ios(io("OUTPUT0", tensor.FP32, 2)))
	c.Parameters = only(parameters)
	return c
}

// checkProducts runs a batch of requests of one row each, and checks every answer.
func checkProducts(t *testing.T, in backend.Instance, rows int, from float32) *batch {
	t.Helper()
	requests := make([]*infer.Request, rows)
	for i := range requests {
		requests[i] = request(1, value{"INPUT0", tensor.FP32, tensor.Shape{1, 3}, pack([]float32{from + float32(i), 1, 2})})
	}
	b := run(t, in, requests...)
	for i := range requests {
		out := outputs(t, b.response(i))
		x := from + float32(i)
		if got := floats(out[0].Data); got[0] != x+13 || got[1] != 2*x+16 {
			t.Errorf("request %d of %d: %v, want [%v %v]", i, rows, got, x+13, 2*x+16)
		}
	}
	return b
}

func TestModelsOnGPUs(t *testing.T) {
	b := openGPU(t)
	in := serve(t, b, onGPU(version(t, product(), products(nil))))
	for i, rows := range []int{1, 7, 64, 3} {
		if batch := checkProducts(t, in, rows, float32(100*i)); batch.executed != 1 || batch.marks != "IFD" {
			t.Errorf("%d requests took %d runs, %s", rows, batch.executed, batch.marks)
		}
	}
	mapped, err := os.ReadFile("/proc/self/maps")
	if err != nil || !strings.Contains(string(mapped), "libonnxruntime_providers_cuda.so") {
		t.Errorf("the CUDA provider is not in use: %v", err)
	}
}

// Instances share the session, and each run has what it was given.
func TestInstancesOnOneGPU(t *testing.T) {
	b := openGPU(t)
	loaded, err := b.Load(context.Background(), onGPU(version(t, product(), products(nil))))
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	var running sync.WaitGroup
	for n := range 4 {
		in, err := loaded.NewInstance(context.Background(), backend.InstanceSpec{Name: fmt.Sprint("m_0_", n), Kind: modelconfig.KindGPU})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		running.Go(func() {
			for i := range 50 {
				checkProducts(t, in, 1+i%9, float32(1000*n+i))
			}
		})
	}
	running.Wait()
}

// The emulated GPU has compute capability 9.0.
func TestModelFilesOfGPUs(t *testing.T) {
	b := openGPU(t)
	c := products(nil)
	c.CapabilityFilenames = map[string]string{"9.0": "hopper.onnx", "9.1": "none.onnx"}
	v := onGPU(version(t, onnxmodel.Model{}, c))
	if os.Getenv("EMULATED_CUDA_STATISTICS") == "" {
		t.Skip("the device is a real one, of any capability")
	}
	product().WriteFile(t, filepath.Join(v.Dir, "hopper.onnx"))
	checkProducts(t, serve(t, b, v), 2, 1)
}

// What the model does not say of its size, and large outputs, come back from the device.
func TestOutputsOfGPUs(t *testing.T) {
	b := openGPU(t)
	c := config(0, ios(io("INPUT0", tensor.FP32, -1)), ios(io("OUTPUT0", tensor.FP32, -1)))
	c.Parameters = only(nil)
	in := serve(t, b, onGPU(version(t, onnxmodel.Identity(tensor.FP32, "n"), c)))
	for _, n := range []int{1, 100, 1 << 20, 3} {
		numbers := make([]float32, n)
		for i := range numbers {
			numbers[i] = float32(i)
		}
		data := pack(numbers)
		out := outputs(t, run(t, in, request(0, value{"INPUT0", tensor.FP32, tensor.Shape{int64(n)}, data})).response(0))
		if out[0].Data != data {
			t.Errorf("%d numbers do not come back", n)
		}
	}
}

// A batch for which the device has no memory is run in parts, and one by itself fails alone.
func TestBatchesBeyondTheMemoryOfAGPU(t *testing.T) {
	b := openGPU(t)
	c := config(64, ios(io("INPUT0", tensor.FP32, -1)), ios(io("OUTPUT0", tensor.FP32, -1)))
	c.Parameters = only(map[string]string{"gpu_mem_limit": "8388608", "arena_extend_strategy": "1"})
	in := serve(t, b, onGPU(version(t, onnxmodel.Identity(tensor.FP32, "b", "n"), c)))
	ask := func(requests, numbers int) *batch {
		list := make([]*infer.Request, requests)
		for i := range list {
			row := make([]float32, numbers)
			row[0] = float32(i)
			list[i] = request(1, value{"INPUT0", tensor.FP32, tensor.Shape{1, int64(numbers)}, pack(row)})
		}
		return run(t, in, list...)
	}
	for range 2 {
		many := ask(16, 1<<18) // 16 MiB in and out
		for i := range 16 {
			if out := outputs(t, many.response(i)); floats(out[0].Data)[0] != float32(i) {
				t.Errorf("request %d got the answer of another", i)
			}
		}
		if many.executed < 4 {
			t.Errorf("the batch took %d runs, want parts", many.executed)
		}
	}
	large := ask(1, 4<<20)
	if r := large.response(0); errs.Of(r.Err) != errs.DeviceMemory || !strings.Contains(r.Err.Error(), "GPU 0") {
		t.Errorf("a request of 16 MiB: %v, want device_memory", r.Err)
	}
	if out := outputs(t, ask(1, 10).response(0)); len(out[0].Data) != 40 {
		t.Errorf("the request after it got %d bytes", len(out[0].Data))
	}
}

func TestNothingIsLeftOnGPUs(t *testing.T) {
	b := openGPU(t)
	for i := range 50 {
		loaded, err := b.Load(context.Background(), onGPU(version(t, product(), products(nil))))
		if err != nil {
			t.Fatal(err)
		}
		in, err := loaded.NewInstance(context.Background(), backend.InstanceSpec{Name: "m_0_0", Kind: modelconfig.KindGPU})
		if err != nil {
			t.Fatal(err)
		}
		checkProducts(t, in, 5, float32(i))
		if err := errors.Join(in.Close(), loaded.Close()); err != nil {
			t.Error(err)
		}
	}
	left := statistics(t)
	if left["device_bytes"] != 0 || left["pinned_bytes"] != 0 || left["copies"] == 0 {
		t.Errorf("after 50 loads: %v", left)
	}
}

// statistics are what an emulated device tells of itself.
func statistics(t *testing.T) map[string]int {
	t.Helper()
	path := os.Getenv("EMULATED_CUDA_STATISTICS")
	if path == "" {
		t.Skip("the device does not tell what is left on it")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := make(map[string]int)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, n := "", 0
		if _, err := fmt.Sscan(lines.Text(), &name, &n); err != nil {
			t.Fatal(err)
		}
		all[name] = n
	}
	return all
}

// Models that GPUs do not run are refused with what to do.
func TestRefusalsOfGPUs(t *testing.T) {
	needsCUDA(t)
	absent, large := onGPU(version(t, product(), products(nil))), onGPU(version(t, product(), products(nil)))
	absent.Device.Number = 7
	weights := filepath.Join(large.Dir, "weights")
	if err := errors.Join(os.WriteFile(weights, nil, 0o600), os.Truncate(weights, 1<<40)); err != nil {
		t.Fatal(err)
	}
	planned := products(nil)
	planned.GPUAccelerators = []modelconfig.Accelerator{{Name: "tensorrt"}}
	for _, tt := range []struct {
		name   string
		v      backend.Version
		reason errs.Reason
		says   []string
	}{
		{"a GPU that is not there", absent, errs.LoadFailed, []string{"there is no GPU 7", "CUDA sees 1"}},
		{"more than there is", large, errs.DeviceMemory, []string{"its files have", "are free", "unload models"}},
		{"an option that is none", onGPU(version(t, product(), products(map[string]string{"cudnn_conv_algo_search": "9"}))), errs.LoadFailed, []string{"cudnn_conv_algo_search", "EXHAUSTIVE"}},
		{"TensorRT without its libraries", onGPU(version(t, product(), planned)), errs.LoadFailed, []string{"libnvinfer.so.10", "install TensorRT 10", "serve the ONNX model on CUDA"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := openGPU(t)
			_, err := b.Load(context.Background(), tt.v)
			if errs.Of(err) != tt.reason {
				t.Fatalf("%v, want %s", err, tt.reason)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			serve(t, b, onGPU(version(t, product(), products(nil)))) // others are not affected
		})
	}
}

// Without CUDA's libraries a model on a GPU is refused with what to install, and those on CPUs
// are served.
func TestWithoutCUDA(t *testing.T) {
	if os.Getenv("NEREID_CUDA_LIBRARIES") != "" {
		t.Skip("there are libraries in this process, which stay")
	}
	b, _ := open(t)
	_, err := b.Load(context.Background(), onGPU(version(t, product(), products(nil))))
	if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "make deps GPU=1") && !strings.Contains(err.Error(), "driver") {
		t.Errorf("%v, want what to install", err)
	}
	c := products(nil)
	delete(c.Parameters, "session.disable_cpu_ep_fallback")
	checkProducts(t, serve(t, b, version(t, product(), c)), 3, 1)
}

// A fault is the device's until the process ends: its worker is told, and what runs then fails
// with the cause. The test is a process of its own, since the fault stays.
func TestFaultOfAGPU(t *testing.T) {
	libraries, fault := needsCUDA(t), os.Getenv("EMULATED_CUDA_FAULT")
	if fault == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFaultOfAGPU$", "-test.v")
		child.Env = append(os.Environ(), "EMULATED_CUDA_FAULT="+filepath.Join(t.TempDir(), "fault"))
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	var told []error
	b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{
		Pool: tensor.NewPool(1 << 20), CUDALibraries: libraries, DeviceFailed: func(err error) { told = append(told, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	in := serve(t, b, onGPU(version(t, product(), products(nil))))
	checkProducts(t, in, 2, 1)
	if err := os.WriteFile(fault, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := run(t, in, request(1, value{"INPUT0", tensor.FP32, tensor.Shape{1, 3}, pack([]float32{1, 2, 3})})).response(0)
		if errs.Of(r.Err) != errs.DeviceFailed || !strings.Contains(r.Err.Error(), "illegal memory access") {
			t.Errorf("%v, want device_failed", r.Err)
		}
	}
	if len(told) != 2 || errs.Of(told[0]) != errs.DeviceFailed {
		t.Errorf("the worker was told %v", told)
	}
}

// CUDA takes signals over in a way that ends a Go process when one comes to a thread that runs
// Go; they are Go's again after a load.
func TestSignalsAreGoOnesBesideCUDA(t *testing.T) {
	b := openGPU(t)
	in := serve(t, b, onGPU(version(t, product(), products(nil))))
	checkProducts(t, in, 1, 1)
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGTERM)
	defer signal.Stop(got)
	var ended atomic.Bool
	var busy sync.WaitGroup
	defer busy.Wait()
	defer ended.Store(true)
	for range runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for !ended.Load() {
			}
		})
	}
	for range 50 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
		case <-time.After(time.Minute):
			t.Fatal("SIGTERM does not come")
		}
	}
}
