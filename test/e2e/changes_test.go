package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// halfConfig is that of a model whose version 2 cannot be loaded: it leaves
// nothing to be read from the files before.
const halfConfig = `{
  "backend": "onnxruntime", "max_batch_size": 8, "version_policy": {"all": {}},
  "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [16]}, {"name": "INPUT1", "data_type": "TYPE_INT32", "dims": [16]}],
  "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [16]}, {"name": "OUTPUT1", "data_type": "TYPE_INT32", "dims": [16]}]
}`

// halfRepository has that model, and one that can be loaded.
func halfRepository(t *testing.T) string {
	t.Helper()
	model, err := os.ReadFile(filepath.Join(examples(t), "simple", "1", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	return repository(t, map[string]string{
		"echo/config.pbtxt": echo(0), "echo/1/.keep": "",
		"half/config.pbtxt": `
backend: "onnxruntime" max_batch_size: 8 version_policy { all { } }
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
`,
		"half/1/model.onnx": string(model), "half/2/model.onnx": "no model",
	})
}

func TestClientsSeeModelsChangeAsWithTriton(t *testing.T) {
	s := start(t, halfRepository(t), "--model-control-mode=explicit")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC, "HALF=" + halfConfig}, "test/e2e/clients/test_changes.py", "-v")
}

// TestMetricsAreWrittenInDigits runs for more than a second, as scripts read the
// microseconds of it with patterns that know no exponent.
func TestMetricsAreWrittenInDigits(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(1_100_000), "m/1/.keep": ""}))
	s.infer(t, "m", http.StatusOK)
	exponent := regexp.MustCompile(`(?m)^[a-z_:]+(\{.*\})? \S*[eE][+-]?\d+`)
	long := regexp.MustCompile(`(?m)^nv_inference_compute_infer_duration_us\{model="m",version="1"\} 1[0-9]{6}$`)
	s.eventually("the time of an execution of more than a second, in digits", func() bool {
		text := s.metrics()
		for _, line := range exponent.FindAllString(text, -1) {
			t.Fatalf("with an exponent: %s", line)
		}
		return long.MatchString(text)
	})
}

func TestRawStringsNeedAFixedDimension(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": `
backend: "echo"
input { name: "x" data_type: TYPE_STRING dims: [ -1 ] }
output { name: "y" data_type: TYPE_STRING dims: [ -1 ] }
`, "m/1/.keep": ""}))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v2/models/m/infer", strings.NewReader("some bytes"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Inference-Header-Content-Length", "0")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a raw body for strings of a variable dimension: %s, want 400", response.Status)
	}
}

// A model that could not be read has no version, and readiness asks versions.
func TestAModelThatWasNeverReadDoesNotMakeTheServerUnready(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"good/config.pbtxt": echo(0), "good/1/.keep": "",
		"bare/1/model.onnx": "has no configuration",
	}), "--strict-model-config=true", "--exit-on-error=false")
	s.wants(t, http.MethodGet, "/v2/health/ready", http.StatusOK, "")
	s.infer(t, "good", http.StatusOK)
	s.wants(t, http.MethodGet, "/v2/models/bare/ready", http.StatusBadRequest, "")
}

func TestAPollUnloadsAModelThatTwoRepositoriesHave(t *testing.T) {
	files := map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": "", "n/config.pbtxt": echo(0), "n/1/.keep": ""}
	first, second := repository(t, files), t.TempDir()
	s := start(t, first, "--model-repository="+second, "--model-control-mode=poll", "--repository-poll-secs=1")
	s.infer(t, "m", http.StatusOK)
	if err := os.CopyFS(filepath.Join(second, "m"), os.DirFS(filepath.Join(first, "m"))); err != nil {
		t.Fatal(err)
	}
	state := func(model string) (states string) {
		for _, e := range s.index() {
			if e.Name == model {
				states += e.State + " " + e.Reason + "; "
			}
		}
		return states
	}
	s.eventually("m to be unloaded", func() bool { return strings.Contains(state("m"), notUnique) && !strings.Contains(state("m"), "READY") })
	s.infer(t, "m", http.StatusNotFound)
	s.infer(t, "n", http.StatusOK)
	if err := os.RemoveAll(filepath.Join(second, "m")); err != nil {
		t.Fatal(err)
	}
	s.eventually("m to be loaded again", func() bool { return strings.HasPrefix(state("m"), "READY") })
	s.infer(t, "m", http.StatusOK)
}

func TestFlagsThatChangeNothing(t *testing.T) {
	inOneProcess(t)
	dir := repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""})
	for name, flag := range map[string]string{
		"the repository twice":              "--model-repository=" + dir,
		"settings of a backend that is not": "--backend-config=nosuch,a=b",
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, dir, flag)
			s.wantIndex(entry{"m", "1", "READY", ""})
			s.infer(t, "m", http.StatusOK)
		})
	}
}

func TestAServerWithoutItsRepositoryStaysUp(t *testing.T) {
	inOneProcess(t)
	s := launch(t, filepath.Join(t.TempDir(), "nosuch"), "--exit-on-error=false")
	s.expect("no models are served: correct the model repository and start again")
	s.expect("listening")
	s.HTTP = s.said().HTTP
	for _, path := range []string{"/v2/health/live", "/v2/health/ready"} {
		if status, body := s.do(http.MethodGet, s.HTTP+path, ""); status != http.StatusBadRequest || body != "" {
			t.Errorf("%s: %d %q", path, status, body)
		}
	}
	s.wants(t, http.MethodGet, "/v2", http.StatusOK, `"extensions"`)
	s.wants(t, http.MethodGet, "/v2/models/m", http.StatusServiceUnavailable, "Server not ready")
	s.wants(t, http.MethodPost, "/v2/repository/index", http.StatusServiceUnavailable, "Server not ready")
}

// TestCheckGoesOnAfterASlip has a slip of syntax hide no slip of meaning.
func TestCheckGoesOnAfterASlip(t *testing.T) {
	dir := repository(t, map[string]string{"m/1/.keep": "", "m/config.pbtxt": `
backend: "echo"
max_batchsize: 4
input { name: "x" data_type: TYPE_INT32 dims: [ -3 ] }
output { name: "y" data_type: TYPE_INT32 dims: [ 1 ] }
`})
	stdout, stderr, status := nereid(t, "check", dir)
	for _, want := range []string{"max_batchsize", "max_batch_size", "input[0].dims[0]"} {
		if !strings.Contains(stdout+stderr, want) {
			t.Errorf("check does not say %q", want)
		}
	}
	if status == 0 || t.Failed() {
		t.Errorf("exit status %d:\n%s%s", status, stdout, stderr)
	}
}
