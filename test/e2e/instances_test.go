package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// wantInstances checks the instances and the configuration that serves.
func (s *server) wantInstances(model string, count int) {
	s.t.Helper()
	status, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model+"/config", "")
	if want := fmt.Sprintf(`"count":%d`, count); status != http.StatusOK || !strings.Contains(text, want) {
		s.t.Errorf("configuration of %s: %d %s, want %s", model, status, text, want)
	}
	text = s.metrics()
	if line := fmt.Sprintf(`nereid_worker_instances{model=%q,state="READY",version="1"} %d`, model, count); !strings.Contains(text, line) {
		s.t.Errorf("no %s in the metrics", line)
	}
}

// limitMemory bounds the process's address space to what it has and so much
// more.
func (s *server) limitMemory(more uint64) {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.models.command.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(text), &pages); err != nil {
		s.t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: pages*uint64(os.Getpagesize()) + more, Max: unix.RLIM_INFINITY}
	if more == 0 {
		limit.Cur = unix.RLIM_INFINITY
	}
	if err := unix.Prlimit(s.models.command.Process.Pid, unix.RLIMIT_AS, &limit, nil); err != nil {
		s.t.Fatal(err)
	}
}

// A load answers with the outcome of a change of the instances, and where
// there is no memory for more, those that there are go on.
func TestInstancesChangeInPlace(t *testing.T) {
	inOneProcess(t) // a worker takes the addresses of all its tensors at the start, so that bounding them bounds nothing
	counted := func(count int) string {
		return fmt.Sprintf(`backend: "onnxruntime" max_batch_size: 128
input { name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }
model_warmup { name: "large" batch_size: 128 inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [524288] zero_data: true } } }
instance_group { count: %d kind: KIND_CPU }
`, count)
	}
	dir := repository(t, map[string]string{
		"a/config.pbtxt": counted(1), "a/1/model.onnx": string(onnxmodel.Relu(tensor.FP32, "n", "x").Bytes()),
		"b/config.pbtxt": echo(0), "b/1/.keep": "",
	})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=*")
	config := filepath.Join(dir, "a", "config.pbtxt")
	s.wantInstances("a", 1)
	s.limitMemory(128 << 20) // and the warm-up takes twice as much
	for range 2 {            // it is tried again when it is asked for again
		rewrite(t, config, counted(2))
		s.control(t, "load", "a", "", 400, "load failed for model 'a': version 1 is at UNAVAILABLE state: failed to run warmup sample 'large': ")
		s.wantIndex(entry{"a", "1", "READY", "failed to run warmup sample 'large'"}, entry{"b", "1", "READY", ""})
		s.wantInstances("a", 1)
	}
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/a/infer", `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[-1,2]}]}`)
	if status != http.StatusOK {
		t.Errorf("infer: %d %s", status, text)
	}
	s.limitMemory(0)
	s.control(t, "load", "a", "", 200, "")
	s.wantIndex(entry{"a", "1", "READY", ""}, entry{"b", "1", "READY", ""})
	s.wantInstances("a", 2)
	rewrite(t, config, counted(1))
	s.control(t, "load", "a", "", 200, "")
	s.wantInstances("a", 1)
}
