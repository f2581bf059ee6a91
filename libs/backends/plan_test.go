package backends_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const plan = `{"tensorrt": "10.13.3.9", "compute_capability": "9.0", "precision": "fp16",
	"profiles": [{"name": "0", "inputs": {"x": {"min": [1, 4], "opt": [8, 4], "max": [8, 4]}}}],
	"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1]}]}`

func TestDescriptionOfAPlan(t *testing.T) {
	h, err := backends.Get("tensorrt").Header(strings.NewReader(plan), int64(len(plan)))
	if err != nil {
		t.Fatal(err)
	}
	in, out := h.Inputs[0], h.Outputs[0]
	if in.Datatype() != tensor.FP32 || in.Shape().String() != "[-1,4]" || out.Datatype() != tensor.Int64 || out.Name != "y" || h.Producer != "TensorRT 10.13.3.9 for compute capability 9.0" {
		t.Errorf("%+v", h)
	}
	for text, says := range map[string]string{
		"":                                                           "build.py",
		plan + strings.Repeat(" ", 1<<20):                            "bytes",
		strings.Replace(plan, "9.0", "", 1):                          "compute_capability",
		strings.Replace(plan, "FP32", "F", 1):                        `"F"`,
		strings.Replace(plan, `"y"`, `"x"`, 1):                       `"x"`,
		strings.Replace(plan, `"x": {`, `"z": {`, 1):                 `"z"`,
		strings.Replace(plan, `"min": [1, 4]`, `"min": [1]`, 1):      "profile",
		strings.Replace(plan, `"precision"`, `"something"`, 1):       "something",
		strings.Replace(plan, `"BYTES"`, `"BYTES"`, 1)[:len(plan)/2]: "build.py",
	} {
		if _, err := backends.ReadPlan(strings.NewReader(text), int64(len(text))); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v, want %q", text, err, says)
		}
	}
}

func TestPlansRunWhereTheyWereBuilt(t *testing.T) {
	p, err := backends.ReadPlan(strings.NewReader(plan), int64(len(plan)))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.RunsOn("10.13.3", "9.0"); err != nil {
		t.Error(err)
	}
	for _, other := range [][2]string{{"10.13.2", "9.0"}, {"10.13.3", "8.9"}, {"8.6.1", "9.0"}} {
		err := p.RunsOn(other[0], other[1])
		if err == nil || !strings.Contains(err.Error(), other[0]) || !strings.Contains(err.Error(), other[1]) || !strings.Contains(err.Error(), "build it again") {
			t.Errorf("on %v: %v", other, err)
		}
	}
}

func FuzzReadPlan(f *testing.F) {
	f.Add(plan)
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := backends.ReadPlan(strings.NewReader(text), int64(len(text)))
		if err != nil {
			return
		}
		if h := p.Header(); len(h.Inputs) == 0 || len(h.Outputs) == 0 || h.Inputs[0].Datatype() == tensor.Invalid {
			t.Errorf("%+v", h)
		}
		if err := p.RunsOn(p.TensorRT, p.Capability); err != nil {
			t.Error(err)
		}
	})
}
