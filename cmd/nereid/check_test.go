package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// runCheck runs the command on a repository, given as files and their texts,
// whose path it replaces by REPO in what was printed.
func runCheck(t *testing.T, files map[string]string, flags ...string) (status int, stdout, stderr string) {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out, errOut bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	status = run(t.Context(), append([]string{"check", root}, flags...), &out, &errOut, none)
	return status, strings.ReplaceAll(out.String(), root, "REPO"), strings.ReplaceAll(errOut.String(), root, "REPO")
}

const echo = `backend: "echo"
max_batch_size: 2
input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ -1, 3 ] }
`

func TestCheckPrintsProblemsAndATable(t *testing.T) {
	status, stdout, stderr := runCheck(t, map[string]string{
		"good/config.pbtxt": echo + "version_policy { all { } }", "good/3/x": "", "good/12/x": "", "good/012/x": "",
		"bad/config.pbtxt": echo + "max_batchsize: 4", "bad/1/x": "",
		"none/config.pbtxt": echo,
	})
	want := `REPO/bad/config.pbtxt:5:1: max_batchsize: unknown field "max_batchsize"
    fix: did you mean max_batch_size?

REPO/good: warning: directory "012" is ignored: a version is a number without leading zeros

REPO/none: at least one version must be available under the version policy of model 'none': add a directory such as REPO/none/1

MODEL   VERSIONS   BACKEND   MAX BATCH   INPUTS         OUTPUTS
good    3,12       echo      2           x INT8[-1,1]   y BYTES[-1,-1,3]
`
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	if status != exitFailed || !strings.Contains(stderr, "2 of 3 models have problems") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// The configuration is right in itself, but not for the model.
func TestCheckHoldsConfigurationsAgainstModels(t *testing.T) {
	const config = `backend: "onnxruntime"
input { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "OUTPUT0" data_type: TYPE_INT8 dims: [ 2 ] }
version_policy { all { } }`
	status, stdout, _ := runCheck(t, map[string]string{
		"names/config.pbtxt": config, "names/1/model.onnx": string(onnxmodel.Relu(tensor.FP32, 2).Bytes()), "names/2/model.onnx": "damaged",
	})
	want := `REPO/names/1/model.onnx: unexpected inference input 'INPUT', allowed inputs are: INPUT0
    fix: did you mean INPUT0?
REPO/names/1/model.onnx: unable to load model 'names', the model's input 'INPUT0' is not in the configuration
    fix: list it, or leave input empty to have all of them completed
REPO/names/1/model.onnx: unable to load model 'names', configuration expects datatype TYPE_INT8 for output 'OUTPUT0', model provides TYPE_FP32
    fix: give the model's data_type
REPO/names/2/model.onnx: the model file of 'names' cannot be read: reading an ONNX model at byte 1 of 7: not an ONNX model: field type 4
    fix: export the model again, or name its file by default_model_filename

`
	if diff := cmp.Diff(want, stdout); diff != "" || status != exitFailed {
		t.Errorf("status %d, output (-want +got):\n%s", status, diff)
	}
}

func TestCheckCompletesAsServeIsToldTo(t *testing.T) {
	batches := onnxmodel.Relu(tensor.FP32, "n", 2)
	for flag, want := range map[string]string{
		"": "onnxruntime   4 ", "--backend-config=onnxruntime,default-max-batch-size=7": "onnxruntime   7 ", "--backend-config=,default-max-batch-size=x": "number of rows",
	} {
		var flags []string
		if flag != "" {
			flags = append(flags, flag)
		}
		if _, stdout, stderr := runCheck(t, map[string]string{"m/1/model.onnx": string(batches.Bytes())}, flags...); !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: %s%s, want %q", flag, stdout, stderr, want)
		}
	}
}

func TestCheckMissesWeightsThatLieElsewhere(t *testing.T) {
	at := func(location string) string {
		m := onnxmodel.Relu(tensor.FP32, 2)
		m.Graph.Initializers = []onnxmodel.Tensor{{Name: "w", Type: tensor.FP32, Shape: tensor.Shape{2}, External: map[string]string{"location": location}}}
		return string(m.Bytes())
	}
	status, stdout, _ := runCheck(t, map[string]string{
		"good/1/model.onnx": at("weights"), "good/1/weights": "12345678", "below/1/model.onnx/model.onnx": at("w/0"), "below/1/model.onnx/w/0": "12345678",
		"absent/1/model.onnx": at("weights"), "above/1/model.onnx": at("../weights"), "above/weights": "12345678", "dir/1/model.onnx": at("w"), "dir/1/w/0": "",
	})
	for model, want := range map[string]string{
		"absent": "the weights of 'absent' in 'weights' cannot be read: no such file or directory",
		"above":  "the weights of 'above' in '../weights' cannot be read: path escapes from parent",
		"dir":    "the weights of 'dir' in 'w' cannot be read: it is not a regular file",
	} {
		if !strings.Contains(stdout, "REPO/"+model+"/1/model.onnx: "+want) {
			t.Errorf("%s lacks %q", model, want)
		}
	}
	if status != exitFailed || strings.Contains(stdout, "'good'") || strings.Contains(stdout, "'below'") {
		t.Errorf("status %d, output:\n%s", status, stdout)
	}
}

func TestCheckShowsWhatIsNoModel(t *testing.T) {
	dir := t.TempDir()
	for name, leads := range map[string]string{"dangling": "nowhere", "linked": "target"} {
		if err := os.Symlink(filepath.Join(dir, leads), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"README.md": "", ".hidden": "", "target/config.pbtxt": echo, "target/1/x": ""} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errOut bytes.Buffer
	status := run(t.Context(), []string{"check", dir}, &out, &errOut, func(string) (string, bool) { return "", false })
	for _, want := range []string{
		"warning: " + dir + "/README.md is ignored: a model is a directory", dir + "/dangling is a link to what is not there", "linked   1 ", "target   1 ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if status != exitFailed || strings.Contains(out.String(), ".hidden") {
		t.Errorf("status %d, output:\n%s", status, out.String())
	}
}

func TestCheckOfGoodModelsSucceeds(t *testing.T) {
	status, stdout, stderr := runCheck(t, map[string]string{"good/config.pbtxt": echo, "good/1/x": ""})
	if status != exitOK || stderr != "" || !strings.HasPrefix(stdout, "MODEL") {
		t.Errorf("status %d, output %q, errors %q", status, stdout, stderr)
	}
}

func TestCheckPrintsJSON(t *testing.T) {
	status, stdout, _ := runCheck(t, map[string]string{
		"good/config.pbtxt": echo, "good/1/x": "",
		"bad/config.pbtxt": echo, "bad/configs/x.pbtxt": "input { dim: 3 }", "bad/1/model.onnx": "",
	}, "--json", "--model-config-name=x", "--disable-auto-complete-config")
	var got checkedJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if status != exitFailed || len(got.Models) != 2 || len(got.Models[0].Problems) == 0 {
		t.Fatalf("status %d, %s", status, stdout)
	}
	want := problemJSON{
		Reason: "config_invalid", File: "configs/x.pbtxt", Line: 1, Column: 9, Field: "input[0].dim",
		Cause: `unknown field "dim" in input[0]`, Fix: "did you mean dims?",
	}
	found := false
	for _, p := range got.Models[0].Problems {
		found = found || p == want
	}
	if !found {
		t.Errorf("problems %+v lack %+v", got.Models[0].Problems, want)
	}
	good := modelJSON{
		Name: "good", Directory: "REPO/good", Problems: []problemJSON{}, Warnings: []string{}, Versions: []int64{1},
		Backend: "echo", MaxBatchSize: 2, Inputs: []tensorJSON{{Name: "x", Datatype: "INT8", Shape: []int64{-1, 1}}},
		Outputs: []tensorJSON{{Name: "y", Datatype: "BYTES", Shape: []int64{-1, -1, 3}}},
	}
	if diff := cmp.Diff(good, got.Models[1]); diff != "" {
		t.Errorf("good model (-want +got):\n%s", diff)
	}
}

func TestCheckOfNoRepositoryFails(t *testing.T) {
	var out, errOut bytes.Buffer
	none := func(string) (string, bool) { return "", false }
	missing := filepath.Join(t.TempDir(), "missing")
	if status := run(t.Context(), []string{"check", missing}, &out, &errOut, none); status != exitFailed || !strings.Contains(errOut.String(), "cannot be read") {
		t.Errorf("status %d, %q", status, errOut.String())
	}
}
