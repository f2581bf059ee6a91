package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// writeModels writes a repository of generated models.
func writeModels(t testing.TB, models []tested) string {
	t.Helper()
	files := make(map[string]string, 2*len(models))
	for _, m := range models {
		files[m.name+"/config.pbtxt"] = m.config()
		files[m.name+"/1/model.onnx"] = string(m.model.Bytes())
	}
	return repository(t, files)
}

// compare serves the models and compares the real clients' answers with those
// of ONNX Runtime's own Python package.
func compare(t *testing.T, models []tested) {
	t.Helper()
	type compared struct {
		Model  string           `json:"model"`
		Inputs []sent           `json:"inputs"`
		Shapes map[string][]int `json:"shapes,omitempty"`
	}
	var list []compared
	for _, m := range models {
		for i, c := range m.cases {
			one := compared{Model: m.name, Inputs: c}
			if m.shapes != nil {
				one.Shapes = m.shapes[i]
			}
			list = append(list, one)
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	cases := filepath.Join(t.TempDir(), "cases.json")
	if err := os.WriteFile(cases, text, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := writeModels(t, models)
	s := start(t, dir)
	python(t, []string{"REPOSITORY=" + dir, "CASES=" + cases, "HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC},
		"test/e2e/clients/compare_onnx.py")
}

func TestAnswersAreOnnxRuntimes(t *testing.T) { compare(t, table()) }
