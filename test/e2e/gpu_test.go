package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// gpuServer serves models on the first GPU, in a process of its own: one on GPUs alone, one
// that leaves the device open, and one on CPUs. It returns the file by which an emulated GPU
// faults.
func gpuServer(t *testing.T, flags ...string) (s *server, fault string) {
	t.Helper()
	libraries := os.Getenv("NEREID_CUDA_LIBRARIES")
	if libraries == "" || clustered() {
		t.Skip("without CUDA: run make cuda-test")
	}
	var model strings.Builder
	model.Write(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes())
	dir := repository(t, map[string]string{
		"gpu/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_GPU count: 2 }`, "gpu/1/model.onnx": model.String(),
		"auto/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8`, "auto/1/model.onnx": model.String(),
		"cpu/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_CPU }`, "cpu/1/model.onnx": model.String(),
		"slow/config.pbtxt": `backend: "echo"
			input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
			instance_group { kind: KIND_GPU } parameters { key: "execute_us" value { string_value: "2000000" } }`, "slow/1/.keep": "",
	})
	fault = filepath.Join(t.TempDir(), "fault")
	t.Setenv("EMULATED_CUDA_FAULT", fault)
	return start(t, dir, append([]string{"--gpus=0", "--backend-config=onnxruntime,cuda-libraries=" + libraries}, flags...)...), fault
}

// echoed asks a model for a number, and returns the status of the response, with its text.
func (s *server) echoed(model string, shape string, number float64) (status int, text string) {
	s.t.Helper()
	body := fmt.Sprintf(`{"inputs": [{"name": "INPUT0", "shape": %s, "datatype": "FP32", "data": [%v]}]}`, shape, number)
	r, err := http.Post("http://"+s.HTTP+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	all, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return r.StatusCode, string(all)
}

func TestServeOnGPUs(t *testing.T) {
	s, _ := gpuServer(t)
	for i, model := range []string{"gpu", "auto", "cpu"} {
		if status, text := s.echoed(model, "[1, 1]", float64(i)+0.5); status != http.StatusOK || !strings.Contains(text, fmt.Sprintf("[%v.5]", i)) {
			t.Errorf("%s: %d %s", model, status, text)
		}
	}
	for model, want := range map[string]string{"gpu": "KIND_GPU", "auto": "KIND_GPU", "cpu": "KIND_CPU"} {
		r, err := http.Get("http://" + s.HTTP + "/v2/models/" + model + "/config")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var config struct {
			Groups []struct {
				Kind string
				GPUs []int
			} `json:"instance_group"`
		}
		if err := json.NewDecoder(r.Body).Decode(&config); err != nil || len(config.Groups) != 1 || config.Groups[0].Kind != want {
			t.Errorf("%s: %+v, %v, want %s", model, config, err, want)
		}
		if model == "auto" && (len(config.Groups[0].GPUs) != 1 || config.Groups[0].GPUs[0] != 0) {
			t.Errorf("%s: %+v, want GPU 0", model, config)
		}
	}
	if out, _, status := nereid(t, "status", "--url="+s.GRPC); status != 0 || !strings.Contains(out, "gpu:0") || !strings.Contains(out, "All is well.") {
		t.Errorf("status: %s", out)
	}
}

// Without what GPUs need a server says so of the models that need one, and serves the others on
// CPUs, by a process of their own.
func TestServeWithoutWhatGPUsNeed(t *testing.T) {
	library := os.Getenv("NEREID_ONNXRUNTIME_LIBRARY")
	if _, err := os.Stat(filepath.Join(filepath.Dir(library), "libonnxruntime_providers_cuda.so")); err == nil || clustered() {
		t.Skip("this ONNX Runtime is one for GPUs")
	}
	model := string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes())
	s := start(t, repository(t, map[string]string{
		"gpu/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8 instance_group { kind: KIND_GPU }`, "gpu/1/model.onnx": model,
		"auto/config.pbtxt": `backend: "onnxruntime" max_batch_size: 8`, "auto/1/model.onnx": model,
	}), "--gpus=0", "--exit-on-error=false")
	if status, text := s.echoed("auto", "[1, 1]", 0.5); status != http.StatusOK || !strings.Contains(text, "[0.5]") {
		t.Errorf("%d %s", status, text)
	}
	if out, _, _ := nereid(t, "models", "--url="+s.HTTP); !strings.Contains(out, "make deps GPU=1") {
		t.Errorf("the model on GPUs does not say what to install:\n%s", out)
	}
	if len(childrenOf(t, s.process.command.Process.Pid)) != 2 {
		t.Error("there are not two workers")
	}
	s.stop()
}

// A GPU that faults, and a worker that is killed, take the models of that GPU away until the
// worker has begun anew, and nothing else.
func TestFaultsOfGPUs(t *testing.T) {
	s, fault := gpuServer(t)
	well := func(model string) bool {
		status, _ := s.echoed(model, "[1, 1]", 1)
		if other, text := s.echoed("cpu", "[1, 1]", 1); other != http.StatusOK {
			t.Fatalf("the model on CPUs: %d %s", other, text)
		}
		return status == http.StatusOK
	}
	if !well("gpu") {
		t.Fatal("it does not begin well")
	}
	if err := os.WriteFile(fault, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status, text := s.echoed("gpu", "[1, 1]", 1); status != http.StatusServiceUnavailable || !strings.Contains(text, "GPU 0 has failed") {
		t.Errorf("%d %s, want what has failed", status, text)
	}
	if err := os.Remove(fault); err != nil {
		t.Fatal(err)
	}
	s.eventually("the GPU runs models again", func() bool { return well("gpu") && well("auto") })
	out, _, _ := nereid(t, "status", "--url="+s.GRPC)
	if !strings.Contains(out, "device_failed") && !strings.Contains(out, "GPU 0 has failed") {
		t.Errorf("status does not say why the worker began anew:\n%s", out)
	}

	killed := false
	for _, pid := range childrenOf(t, s.process.command.Process.Pid) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(line), "--device=gpu:0") {
			killed = syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	if !killed {
		t.Fatal("there is no process for the GPU")
	}
	s.eventually("the GPU runs models after a kill", func() bool { return well("gpu") })
}

// Requests that run on a GPU are answered before the server ends, although CUDA takes signals
// over.
func TestDrainOfGPUs(t *testing.T) {
	s, _ := gpuServer(t)
	if status, text := s.echoed("gpu", "[1, 1]", 1); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	answered := make(chan int, 1)
	go func() { // ends with the response
		status, _ := s.echoed("slow", "[1]", 1)
		answered <- status
	}()
	s.eventually("the request runs", func() bool {
		out, _, _ := nereid(t, "status", "--url="+s.GRPC)
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "slow" && fields[len(fields)-1] == "1" {
				return true
			}
		}
		return false
	})
	s.stop()
	if status := <-answered; status != http.StatusOK {
		t.Errorf("the request that ran: %d", status)
	}
}

// childrenOf lists the processes that a process has started.
func childrenOf(t *testing.T, parent int) (list []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, pid)
		}
	}
	return list
}
