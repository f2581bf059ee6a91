package e2e

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A model that asks for OpenVINO answers as without it, and is refused with what to do
// where the library is not there.
func TestAcceleratedModels(t *testing.T) {
	library := filepath.Join(filepath.Dir(os.Getenv("NEREID_ONNXRUNTIME_LIBRARY")), "..", "openvino", "libonnxruntime_providers_openvino_plugin.so")
	if _, err := os.Stat(library); err != nil && runtime.GOARCH != "amd64" {
		t.Skipf("make deps has no OpenVINO for this machine: %v", err)
	}
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil && !strings.Contains(string(cpu), "GenuineIntel") {
		t.Skip("OpenVINO's provider supports Intel's processors alone")
	}
	text, err := os.ReadFile("../../examples/models/digits/config.pbtxt")
	if err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile("../../examples/models/digits/1/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	labels, err := os.ReadFile("../../examples/models/digits/digits_labels.txt")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Replace(string(text), `name: "digits"`, "", 1)
	accelerated := plain + `optimization { execution_accelerators { cpu_execution_accelerator: [ { name: "openvino" } ] } }`
	dir := repository(t, map[string]string{
		"own/config.pbtxt": plain, "own/1/model.onnx": string(model), "own/digits_labels.txt": string(labels),
		"fast/config.pbtxt": accelerated, "fast/1/model.onnx": string(model), "fast/digits_labels.txt": string(labels),
	})
	s := start(t, dir)
	answer := func(model string) []float64 {
		t.Helper()
		body := `{"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [` + strings.Repeat("0.5, ", 63) + `1]}]}`
		response, err := http.Post("http://"+s.HTTP+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var answered struct {
			Outputs []struct{ Data []float64 }
		}
		if err := json.NewDecoder(response.Body).Decode(&answered); err != nil || len(answered.Outputs) == 0 {
			t.Fatalf("%s: %s, %v", model, response.Status, err)
		}
		return answered.Outputs[0].Data
	}
	own, fast := answer("own"), answer("fast")
	for i := range own {
		if len(fast) != len(own) || math.Abs(own[i]-fast[i]) > 1e-4 {
			t.Fatalf("on its own %v, accelerated %v", own, fast)
		}
	}
	if out, errors, status := nereid(t, "compare", "own", "fast", "--url="+s.HTTP, "--rows=4"); status != 0 || !strings.Contains(out, "64 of 64") {
		t.Errorf("%s%s", out, errors)
	}
	without := start(t, dir, "--backend-config=onnxruntime,openvino-library=/none.so", "--exit-on-error=false")
	without.eventually("the model is refused with what to do", func() bool {
		out, _, _ := nereid(t, "models", "--url="+without.HTTP)
		return strings.Contains(out, "OpenVINO's library is not there") && strings.Contains(out, "make deps")
	})
}
