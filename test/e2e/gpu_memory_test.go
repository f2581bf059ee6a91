package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// emulateGPUs has processes see two emulated GPUs. It returns the file in which those on GPUs
// tell what is on them.
func emulateGPUs(t *testing.T) (statistics string) {
	t.Helper()
	statistics = filepath.Join(t.TempDir(), "statistics")
	t.Setenv("EMULATED_CUDA_STATISTICS", statistics)
	t.Setenv("EMULATED_CUDA_DEVICES", "2")
	return statistics
}

// cudaClient runs a program with the real client, whose process has memory on the emulated GPUs.
func cudaClient(t *testing.T, s *server, statistics, keeper string, args ...string) {
	t.Helper()
	python(t, []string{
		"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC, "WORKERS=" + keeper, "STATISTICS=" + statistics,
		"EMULATED_CUDA_STATISTICS=" + os.DevNull, "PYTHONPATH=test/cuda/python",
	}, args...)
}

// TestClientsShareMemoryOfGPUs has the real clients send and receive tensors in the memory of
// an emulated GPU, by the client library's own utilities.
func TestClientsShareMemoryOfGPUs(t *testing.T) {
	statistics := emulateGPUs(t)
	s, _ := gpuServer(t, "--allow-client-shm=true")
	cudaClient(t, s, statistics, strconv.Itoa(s.process.command.Process.Pid), "test/e2e/clients/test_cuda_shared_memory.py", "-v")
	if !mapped(statistics, 0) {
		t.Error("regions are mapped that are unregistered")
	}
}

// mapped reports whether the statistics tell of so many bytes of other processes' memory.
func mapped(statistics string, bytes int) bool {
	text, err := os.ReadFile(statistics)
	return err == nil && strings.Contains(string(text), fmt.Sprintf("imported_bytes %d\n", bytes))
}

// TestClientsShareMemoryOfGPUsInAClusterOfServices does the same where each service and worker is
// a process, and kills the gateway while a region is registered: the worker unmaps it.
func TestClientsShareMemoryOfGPUsInAClusterOfServices(t *testing.T) {
	libraries := os.Getenv("NEREID_CUDA_LIBRARIES")
	if libraries == "" {
		t.Skip("without CUDA: run make cuda-test")
	}
	statistics := emulateGPUs(t)
	bus := run(t, "nereid", "bus", "--listen=127.0.0.1:0", "--log-format=json")
	bus.expect("listening")
	sockets := socketDir(t)
	model := string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes())
	models := repository(t, map[string]string{
		"gpu/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_GPU gpus: [ 0 ] }`, "gpu/1/model.onnx": model,
		"cpu/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_CPU }`, "cpu/1/model.onnx": model,
	})
	common := []string{"--nats-url=" + bus.said().NATS, "--log-format=json", "--metrics-address=127.0.0.1", "--metrics-port=0"}
	all := []*process{
		bus,
		run(t, "registry", append(common, "--model-repository="+models, "--listen=unix:"+filepath.Join(sockets, "registry"))...),
		run(t, "scheduler", append(common, "--listen=unix:"+filepath.Join(sockets, "scheduler"))...),
	}
	for _, device := range []string{"cpu", "gpu:0", "gpu:1"} {
		if device == "gpu:1" {
			t.Setenv("EMULATED_CUDA_STATISTICS", os.DevNull) // the statistics are those of GPU 0
		}
		all = append(all, run(t, "worker", append(common, "--id="+strings.ReplaceAll(device, ":", ""), "--device="+device, "--listen=unix:"+filepath.Join(sockets, device),
			"--backend-config=onnxruntime,cuda-libraries="+libraries)...))
	}
	gateway := run(t, "gateway", append(append(common[:2:2], "--allow-client-shm=true"), anyPorts()...)...)
	s := &server{process: gateway, models: gateway, all: append(all, gateway)}
	gateway.expect("started")
	s.HTTP, s.GRPC = s.said().HTTP, s.said().GRPC
	cudaClient(t, s, statistics, "", "test/e2e/clients/test_cuda_shared_memory.py", "-v")

	cudaClient(t, s, statistics, "", "-c", `
import os, tritonclient.http as http, tritonclient.utils.cuda_shared_memory as cuda
region = cuda.create_shared_memory_region("r", 64, 0)
http.InferenceServerClient(os.environ["HTTP_URL"]).register_cuda_shared_memory("r", cuda.get_raw_handle(region), 0, 64)
`)
	if !mapped(statistics, 512) {
		t.Error("the region is not mapped")
	}
	s.wantMetrics("nereid_gateway_shared_memory_regions 1", "nereid_gateway_shared_memory_bytes 64")
	gateway.signal(syscall.SIGKILL)
	s.eventually("the worker unmaps the region", func() bool { return mapped(statistics, 0) })
}
