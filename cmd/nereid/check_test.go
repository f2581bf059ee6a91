package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
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
	if status != process.ExitFailed || !strings.Contains(stderr, "2 of 3 models have problems") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

func TestCheckSaysThatThereIsNothing(t *testing.T) {
	status, stdout, _ := runCheck(t, nil)
	if status != process.ExitOK || !strings.HasPrefix(stdout, "warning: no model is in REPO: ") {
		t.Errorf("status %d: %s", status, stdout)
	}
}

// An object store's URL is printed as it was given.
func TestCheckNamesObjectsByTheirURL(t *testing.T) {
	store := objectstore.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	store.Put("bad/config.pbtxt", echo+"max_batchsize: 4")
	store.Put("bad/1/x", "")
	var out bytes.Buffer
	status := run(t.Context(), []string{"check", store.URL()}, &out, &out, noEnv)
	if want := store.URL() + "/bad/config.pbtxt:5:1: "; status != process.ExitFailed || !strings.HasPrefix(out.String(), want) {
		t.Errorf("status %d, want %s: %s", status, want, out.String())
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
    fix: write  data_type: TYPE_FP32
REPO/names/2/model.onnx: the model file of 'names' cannot be read: reading an ONNX model at byte 1 of 7: not an ONNX model: field type 4
    fix: export or copy the model again

`
	if diff := cmp.Diff(want, stdout); diff != "" || status != process.ExitFailed {
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
	if status != process.ExitFailed || strings.Contains(stdout, "'good'") || strings.Contains(stdout, "'below'") {
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
	if status != process.ExitFailed || strings.Contains(out.String(), ".hidden") {
		t.Errorf("status %d, output:\n%s", status, out.String())
	}
}

// What is said of a model that no worker would take, or whose files are not
// what they should be.
func TestCheckKnowsWhatWillNotLoad(t *testing.T) {
	const batched = `backend: "onnxruntime"
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 2 ] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] }
`
	relu := func(dims ...any) string { return string(onnxmodel.Relu(tensor.FP32, dims...).Bytes()) }
	_, stdout, _ := runCheck(t, map[string]string{
		"closed/config.pbtxt": strings.Replace(batched, "-1, 2", "2", 1), "closed/1/model.onnx": relu(1, 2),
		"gpu/config.pbtxt": echo + "instance_group { kind: KIND_GPU }", "gpu/1/x": "",
		"lfs/1/model.onnx":   "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
		"other/config.pbtxt": batched, "other/1/resnet.onnx": relu("n", 2),
		"rank/config.pbtxt": batched, "rank/1/model.onnx": relu("n", 2),
		"flat/model.onnx":   relu("n", 2),
		"plan/config.pbtxt": strings.Replace(batched, "onnxruntime", "tensorrt", 1), "plan/1/model.plan": "",
		"unbatched/config.pbtxt": strings.Replace(strings.Replace(batched, "-1, 2", "2", 1), "4", "0", 1), "unbatched/1/model.onnx": relu("n", 2),
		"vllm/config.pbtxt": `backend: "vllm"`, "vllm/1/model.json": "{}",
	})
	var got []string
	for line := range strings.Lines(stdout) {
		if line = strings.TrimSpace(line); line != "" {
			got = append(got, line)
		}
	}
	const noBackend = "backend: this server has no backend '%s': it has dyna_sequence, echo, identity, onnxruntime, openvino, python, pytorch, repeat, sequence, square, tensorflow, tensorrt, and loads no shared objects as backends"
	want := []string{
		"REPO/closed/1/model.onnx: model 'closed', tensor 'INPUT0': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is [1,2]",
		"fix: set max_batch_size: 0 and dims: [ 1, 2 ], or export the model with its first dimension open",
		"REPO/closed/1/model.onnx: model 'closed', tensor 'OUTPUT0': for the model to support batching the shape should have at least 1 dimension and the first dimension must be -1; but shape expected by the model is [1,2]",
		"fix: set max_batch_size: 0 and dims: [ 1, 2 ], or export the model with its first dimension open",
		"REPO/flat/config.pbtxt: backend: Invalid model name: Could not determine backend for model 'flat' with no backend in model configuration. Expected model name of the form 'model.<backend_name>'.",
		`fix: set backend, for example  backend: "onnxruntime"`,
		"REPO/flat: at least one version must be available under the version policy of model 'flat': move model.onnx into a directory such as REPO/flat/1",
		"REPO/gpu: instance_group: instance group gpu_0 of model gpu has kind KIND_GPU but no GPUs are available: use KIND_CPU, or add a group of it",
		"REPO/lfs/1/model.onnx: autofill failed for model 'lfs': not an ONNX model but a pointer of Git LFS, which stands for it until  git lfs pull  fetches it",
		"fix: export the model again, or list input and output in the configuration",
		"REPO/other/1/model.onnx: the model file of 'other' cannot be read: the model file does not exist, but 'resnet.onnx' does",
		"fix: put it there, or name it by default_model_filename",
		"REPO/plan: instance_group: backend tensorrt runs on GPUs alone, and there are none",
		"REPO/plan/1/model.plan: the model file of 'plan' cannot be read: there is no model.plan.json beside it, which tells for which GPU it was built: build it with examples/tensorrt/build.py",
		"fix: export or copy the model again",
		"REPO/rank/1/model.onnx: model 'rank', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [-1,-1,2])",
		"fix: write  dims: [ 2 ], without the batch dimension",
		"REPO/unbatched/1/model.onnx: model 'unbatched', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 1 dimensions (shape [2])",
		"fix: write  dims: [ -1, 2 ], or set max_batch_size",
		"REPO/unbatched/1/model.onnx: model 'unbatched', tensor 'OUTPUT0': the model expects 2 dimensions (shape [-1,2]) but the model configuration specifies 1 dimensions (shape [2])",
		"fix: write  dims: [ -1, 2 ], or set max_batch_size",
		"REPO/vllm: " + fmt.Sprintf(noBackend, "vllm"),
		"fix: name the directory that has vllm/model.py by --backend-directory, or run vLLM in a Python model, which gives its engine what model.json has",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// A step whose model is unknown is named beside other problems of its ensemble, and only once.
func TestCheckNamesUnknownStepsBesideOtherProblems(t *testing.T) {
	const ensemble = `platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "unused" data_type: TYPE_FP32 dims: [ 1 ] } ]
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
ensemble_scheduling {
  step { model_name: "STEP" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
`
	_, stdout, _ := runCheck(t, map[string]string{
		"alone/config.pbtxt": strings.NewReplacer(`, { name: "unused" data_type: TYPE_FP32 dims: [ 1 ] }`, "", "STEP", "nowhere").Replace(ensemble), "alone/1/x": "",
		"beside/config.pbtxt": strings.Replace(ensemble, "STEP", "nowhere", 1), "beside/1/x": "",
		"broken/config.pbtxt": strings.Replace(ensemble, "STEP", "nowhere", 1) + "max_batch: 1", "broken/1/x": "",
		"itself/config.pbtxt": strings.Replace(ensemble, "STEP", "itself", 1), "itself/1/x": "",
		"known/config.pbtxt": strings.Replace(ensemble, "STEP", "faulty", 1), "known/1/x": "",
		"faulty/config.pbtxt": echo + "max_batch_size: -1", "faulty/1/x": "",
	})
	for model, want := range map[string]int{"alone": 1, "beside": 1, "broken": 1, "itself": 0, "known": 0} {
		text := "ensemble_scheduling.step[0].model_name: ensemble " + model + " contains models that are not available or ambiguous"
		if got := strings.Count(stdout, "REPO/"+model+"/config.pbtxt:5:10: "+text); got != want {
			t.Errorf("%s has %d unknown steps, want %d", model, got, want)
		}
	}
	if t.Failed() {
		t.Log(stdout)
	}
}

func TestCheckOfGoodModelsSucceeds(t *testing.T) {
	status, stdout, stderr := runCheck(t, map[string]string{"good/config.pbtxt": echo, "good/1/x": ""})
	if status != process.ExitOK || stderr != "" || !strings.HasPrefix(stdout, "MODEL") {
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
	if status != process.ExitFailed || len(got.Models) != 2 || len(got.Models[0].Problems) == 0 {
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
	if status := run(t.Context(), []string{"check", missing}, &out, &errOut, none); status != process.ExitFailed || !strings.Contains(errOut.String(), "is not there") {
		t.Errorf("status %d, %q", status, errOut.String())
	}
}

// What GPUs there are is known where the models are to run.
func TestCheckForGPUs(t *testing.T) {
	const tensors = `max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 2 } `
	files := map[string]string{
		"second/config.pbtxt": `backend: "echo" ` + strings.Replace(tensors, "dims: 2", "dims: 4", 1) + "instance_group { kind: KIND_GPU gpus: 1 }", "second/1/x": "",
		"plan/config.pbtxt": `platform: "tensorrt_plan" ` + tensors, "plan/1/model.plan": "plan",
		"plan/1/model.plan.json": `{"tensorrt": "10.13.3", "compute_capability": "9.0", "precision": "fp16", "profiles": [],
			"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]}`,
		"open/1/model.plan": "plan",
		"open/1/model.plan.json": `{"tensorrt": "10.13.3", "compute_capability": "9.0", "precision": "fp16", "profiles": [],
			"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}]}`,
	}
	for gpus, bad := range map[string]int{"0": 3, "1": 1, "2": 0} {
		status, stdout, stderr := runCheck(t, files, "--gpus="+gpus)
		if strings.Contains(stderr, fmt.Sprintf("%d of 3 models", bad)) != (bad > 0) || (status != 0) != (bad > 0) {
			t.Errorf("with %s GPUs: %d, %s%s", gpus, status, stdout, stderr)
		}
	}
}
