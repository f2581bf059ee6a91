package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// twoRepositories share the model m; each has one of its own.
func twoRepositories(t *testing.T) (a, b string) {
	t.Helper()
	a = repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": "", "only/config.pbtxt": echo(0), "only/1/.keep": ""})
	b = repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": "", "other/config.pbtxt": echo(0), "other/1/.keep": ""})
	return a, b
}

const (
	ambiguous = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."
	notUnique = "model appears in two or more repositories"
)

func (s *server) wants(t *testing.T, method, path string, status int, want string) {
	t.Helper()
	body := ""
	if strings.HasSuffix(path, "/infer") {
		body = one
	}
	if got, text := s.do(method, s.HTTP+path, body); got != status || !strings.Contains(text, want) {
		t.Errorf("%s %s: %d %s, want %d with %q", method, path, got, text, status, want)
	}
}

func TestModelsOfOneNameAreServedBesideEachOther(t *testing.T) {
	a, b := twoRepositories(t)
	s := start(t, a, "--model-repository="+b, "--model-namespacing=true")
	s.wantIndex(entry{"m", "1", "READY", ""}, entry{"m", "1", "READY", ""}, entry{"only", "1", "READY", ""}, entry{"other", "1", "READY", ""})

	s.infer(t, "only", http.StatusOK)
	s.infer(t, "other", http.StatusOK)
	for path, method := range map[string]string{
		"/v2/models/m/infer": http.MethodPost, "/v2/models/m": http.MethodGet, "/v2/models/m/config": http.MethodGet,
		"/v2/models/m/stats": http.MethodGet, "/v2/models/m/versions/1/infer": http.MethodPost,
	} {
		s.wants(t, method, path, http.StatusBadRequest, ambiguous)
	}
	s.wants(t, http.MethodGet, "/v2/models/m/ready", http.StatusBadRequest, "Model version not ready")
	s.wants(t, http.MethodGet, "/v2/models/nosuch", http.StatusBadRequest, "Request for unknown model: 'nosuch' is not found")
	s.wants(t, http.MethodGet, "/v2/models/only/versions/7", http.StatusNotFound, "Request for unknown model: '"+a+"::only' version 7 is not found")
	s.wants(t, http.MethodGet, "/v2/models/stats", http.StatusOK, `"name":"other"`)
	s.wants(t, http.MethodGet, "/v2/models/only", http.StatusOK, `"name":"only"`)

	s.wantMetrics(
		`nv_inference_request_success{model="only",namespace="`+a+`",version="1"} 1`,
		`nv_inference_request_success{model="m",namespace="`+a+`",version="1"} 0`,
		`nv_inference_request_success{model="m",namespace="`+b+`",version="1"} 0`,
	)
	if want := `nv_model_load_duration_secs{model="m",namespace="` + b + `",version="1"} `; !strings.Contains(s.metrics(), want) {
		t.Errorf("no %s in the metrics", want)
	}
}

func TestLoadsAndUnloadsOfANameMeanAllModelsOfIt(t *testing.T) {
	a, b := twoRepositories(t)
	s := start(t, a, "--model-repository="+b, "--model-namespacing=true", "--model-control-mode=explicit", "--load-model=m")
	ready, listed := entry{"m", "1", "READY", ""}, []entry{{Name: "only"}, {Name: "other"}}
	s.wantIndex(append([]entry{ready, ready}, listed...)...)
	s.control(t, "unload", "m", "", 200, "")
	unloaded := entry{"m", "1", "UNAVAILABLE", "unloaded"}
	s.wantIndex(append([]entry{unloaded, unloaded}, listed...)...)
	s.infer(t, "m", http.StatusNotFound)

	// One that cannot be loaded does not keep the other from it.
	rewrite(t, filepath.Join(b, "m", "config.pbtxt"), strings.Replace(echo(0), `"echo"`, `"nosuch"`, 1))
	s.control(t, "load", "m", "", 400, "load failed for model '"+b+"::m'")
	s.wantIndex(append([]entry{ready, {"m", "1", "UNAVAILABLE", "nosuch"}}, listed...)...)
	s.wants(t, http.MethodPost, "/v2/models/m/infer", http.StatusBadRequest, ambiguous)
	rewrite(t, filepath.Join(b, "m", "config.pbtxt"), echo(0))
	s.control(t, "load", "m", "", 200, "")
	s.wantIndex(append([]entry{ready, ready}, listed...)...)

	config := `{"parameters":{"config":"{\"backend\":\"echo\",\"input\":[{\"name\":\"x\",\"data_type\":\"TYPE_INT32\",\"dims\":[1]}],` +
		`\"output\":[{\"name\":\"y\",\"data_type\":\"TYPE_INT32\",\"dims\":[1]}]}","file:1/weights":"AAAA"}}`
	s.control(t, "load", "m", config, 400, ambiguous)
	s.control(t, "load", "only", config, 200, "") // in place of the only one there is
	s.control(t, "load", "given", config, 200, "")
	s.wantIndex(entry{"given", "1", "READY", ""}, ready, ready, entry{"only", "1", "READY", ""}, entry{Name: "other"})
	s.wants(t, http.MethodGet, "/v2/models/given", http.StatusOK, `"name":"given"`)
	s.wants(t, http.MethodGet, "/v2/models/only", http.StatusOK, `"name":"only"`)
}

func TestTheStartNamesFailedModelsWithTheirNamespaces(t *testing.T) {
	a, b := twoRepositories(t)
	rewrite(t, filepath.Join(b, "m", "config.pbtxt"), "backnd: 'echo'")
	s := launch(t, a, "--model-repository="+b, "--model-namespacing=true")
	if status, want := s.exit(), `failed to load all models: not ["`+b+`::m"]`; status != 1 || !strings.Contains(s.text(), want) {
		t.Errorf("exit status %d, want 1 with %s in the log", status, want)
	}
}

func TestWithoutNamespacesANameOfTwoModelsServesNone(t *testing.T) {
	a, b := twoRepositories(t)
	s := start(t, a, "--model-repository="+b, "--exit-on-error=false")
	s.wantIndex(entry{"m", "", "UNAVAILABLE", notUnique}, entry{"only", "1", "READY", ""}, entry{"other", "1", "READY", ""})
	if metrics := s.metrics(); strings.Contains(metrics, "namespace=") {
		t.Error("metrics have a namespace without namespacing")
	}
}
