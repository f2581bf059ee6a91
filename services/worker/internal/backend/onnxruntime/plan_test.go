//go:build cgo

package onnxruntime

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

const described = `{"tensorrt": "10.13.3.9", "compute_capability": "9.0", "precision": "fp16",
	"profiles": [{"name": "small", "inputs": {"x": {"min": [1, 4], "opt": [8, 4], "max": [8, 4]}}}],
	"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [{"name": "y", "datatype": "FP16", "shape": [-1, 2]}]}`

func plan(t *testing.T) *backends.Plan {
	t.Helper()
	p, err := backends.ReadPlan(strings.NewReader(described), int64(len(described)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The model around a plan is an ONNX model with the plan's inputs and outputs, of one node that
// names the plan beside it.
func TestModelAroundAPlan(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.plan")
	if err := os.WriteFile(file, []byte("the plan"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := plan(t)
	m, err := writePlanModel(p, file)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := onnxheader.Read(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	want := p.Header()
	for _, v := range [][]onnxheader.Value{want.Inputs, want.Outputs} {
		v[0].Dims[0].Symbol = v[0].Name + "_0"
	}
	if diff := cmp.Diff(want.Inputs, h.Inputs) + cmp.Diff(want.Outputs, h.Outputs); diff != "" {
		t.Error(diff)
	}
	if linked, err := os.ReadFile(filepath.Join(filepath.Dir(m.file), linkedPlan)); err != nil || string(linked) != "the plan" {
		t.Errorf("%q, %v", linked, err)
	}
	// ONNX Runtime reads it, and lacks only who runs it.
	b, err := Open(onnxmodel.Library(t), Options{Pool: tensor.NewPool(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if s, err := b.newSession(t.Context(), m.file, backend.Version{Config: new(modelconfig.Config)}, cores.Set{}); err == nil || !strings.Contains(err.Error(), contextNode) {
		t.Errorf("%v, %v, want that nobody runs %s", s, err, contextNode)
	}
	m.close()
	if _, err := os.Stat(m.dir); err == nil {
		t.Error("the model stays")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("the plan itself is gone")
	}
}

func TestProfilesOfPlans(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "0": true, "small": true, "large": false, "1": false} {
		c := &modelconfig.Config{Groups: []modelconfig.InstanceGroup{{Name: "m_0"}}}
		if name != "" {
			c.Groups[0].Profiles = []string{name}
		}
		if err := checkProfiles(backend.Version{Config: c}, plan(t)); (err == nil) != ok {
			t.Errorf("profile %q: %v", name, err)
		}
	}
}

// Engines of one model are kept apart by what they depend on, and only where that is asked for.
func TestPlaceOfEngines(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(model, []byte("a model"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := engineCache{root: t.TempDir(), model: model, runtime: "1.31.1"}
	seen := make(map[string]bool)
	for _, on := range [][2]string{{"10.13.3", "9.0"}, {"10.13.3", "8.9"}, {"10.14.0", "9.0"}} {
		options := map[string]string{"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "0"}
		if err := e.place(options, on[0], on[1]); err != nil {
			t.Fatal(err)
		}
		dir := options["trt_engine_cache_path"]
		if info, err := os.Stat(dir); err != nil || !info.IsDir() || seen[dir] || options["trt_timing_cache_path"] != "" {
			t.Errorf("on %v: %v", on, options)
		}
		seen[dir] = true
	}
	for _, options := range []map[string]string{{}, {"trt_engine_cache_enable": "1", "trt_engine_cache_path": "/own"}} {
		before := len(options)
		if err := e.place(options, "10.13.3", "9.0"); err != nil || len(options) != before {
			t.Errorf("%v, %v", options, err)
		}
	}
}
