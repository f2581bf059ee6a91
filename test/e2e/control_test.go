package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// entry is a line of the repository index. A reason need only contain the
// wanted one.
type entry struct{ Name, Version, State, Reason string }

func (s *server) index() []entry {
	s.t.Helper()
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/index", "")
	var list []entry
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		s.t.Fatalf("index: %d %s", status, text)
	}
	return list
}

func (s *server) wantIndex(want ...entry) {
	s.t.Helper()
	var got []entry
	s.untilIndex(func(list []entry) bool { // an unload answers when it has begun
		got = list
		return !slices.ContainsFunc(list, func(e entry) bool { return e.State == "UNLOADING" })
	})
	about := cmp.Comparer(func(a, b entry) bool {
		reasons := strings.Contains(a.Reason, b.Reason) || strings.Contains(b.Reason, a.Reason)
		if a.Reason == "" || b.Reason == "" {
			reasons = a.Reason == b.Reason
		}
		a.Reason, b.Reason = "", ""
		return a == b && reasons
	})
	if diff := cmp.Diff(want, got, about); diff != "" {
		s.t.Errorf("index (-want +got):\n%s", diff)
	}
}

func (s *server) control(t *testing.T, verb, model, body string, status int, want string) {
	t.Helper()
	got, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/models/"+model+"/"+verb, body)
	if got != status || !strings.Contains(text, want) {
		t.Errorf("%s %s: %d %s, want %d with %q", verb, model, got, text, status, want)
	}
}

func (s *server) infer(t *testing.T, path string, status int) {
	t.Helper()
	if got, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+path+"/infer", one); got != status {
		t.Errorf("infer %s: %d %s, want %d", path, got, text, status)
	}
}

func TestExplicitControl(t *testing.T) {
	dir := repository(t, map[string]string{
		"a/config.pbtxt": echo(0), "a/1/.keep": "",
		"b/config.pbtxt": echo(0), "b/1/.keep": "",
		"broken/config.pbtxt": "backnd: 'echo'", "broken/1/.keep": "",
	})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=a")
	s.wantIndex(entry{"a", "1", "READY", ""}, entry{Name: "b"}, entry{Name: "broken"})
	s.infer(t, "b", http.StatusNotFound)

	s.control(t, "load", "b", "", 200, "")
	s.infer(t, "b", http.StatusOK)
	s.control(t, "load", "b", "", 200, "") // unchanged
	s.control(t, "unload", "b", `{"parameters":{"unload_dependents":true}}`, 200, "")
	s.infer(t, "b", http.StatusNotFound)
	s.infer(t, "b/versions/1", http.StatusServiceUnavailable)
	s.wantIndex(entry{"a", "1", "READY", ""}, entry{"b", "1", "UNAVAILABLE", "unloaded"}, entry{Name: "broken"})
	s.control(t, "load", "b", "", 200, "")
	s.infer(t, "b", http.StatusOK)

	s.control(t, "load", "broken", "", 500, "failed to load 'broken', failed to poll from model repository: config.pbtxt:1:1: unknown field")
	s.control(t, "load", "nosuch", "", 500, "failed to load 'nosuch', failed to poll from model repository")
	s.control(t, "unload", "nosuch", "", 200, "")
	s.control(t, "load", "%20", "", 400, "Model name cannot be empty. Please enter a valid name to deploy.")
	s.control(t, "load", "..%2Fa", "", 500, "failed to load '../a', failed to poll from model repository")
	s.control(t, "unload", "..%2Fa", "", 200, "")
	for _, path := range []string{"broken", "broken/versions/1"} { // which could not be polled
		if status, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+path, ""); status != http.StatusNotFound || !strings.Contains(text, "Request for unknown model: 'broken' is not found") {
			t.Errorf("metadata of %s: %d %s", path, status, text)
		}
	}
	s.control(t, "load", "a", `{"parameters":{"nonsense":"x"}}`, 400, "nonsense")
	s.control(t, "load", "a", `{"parameters":{"config":{}}}`, 400, "config")
	s.control(t, "load", "a", `{"parameters":{"config":"{"}}`, 500, "failed to load 'a', failed to poll from model repository: Invalid config override")
	s.control(t, "load", "a", `{"parameters":{"file:1/x":"AAAA"}}`, 500, "failed to load 'a', failed to poll from model repository: Load parameter 'config' must be specified for model file override")
	s.control(t, "unload", "a", `{"parameters":{"unload_dependents":1}}`, 400, "unload_dependents")
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/r/models/a/load", ""); status != 501 || !strings.Contains(text, "'repository_name' specification is not supported") {
		t.Errorf("load with a repository: %d %s", status, text)
	}
	s.infer(t, "a", http.StatusOK)
}

func TestControlIsRefusedInOtherModes(t *testing.T) {
	dir := repository(t, map[string]string{"a/config.pbtxt": echo(0), "a/1/.keep": ""})
	for _, mode := range []string{"none", "poll"} {
		s := start(t, dir, "--model-control-mode="+mode)
		for _, verb := range []string{"load", "unload"} {
			s.control(t, verb, "a", "", 503, "explicit model load / unload is not allowed if polling is enabled")
		}
	}
}

func TestABadContentNeverReplacesAGoodOne(t *testing.T) {
	dir := reloadable(t)
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=*")
	config := filepath.Join(dir, "simple", "config.pbtxt")
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	l := s.underLoad(t, "echo")
	serving := func(reason string) {
		t.Helper()
		s.wantIndex(entry{"echo", "1", "READY", ""}, entry{"simple", "1", "READY", reason})
		l.more(20)
	}
	serving("")
	rewrite(t, config, "max_batchsize: 4")
	s.control(t, "load", "simple", "", 500, "failed to load 'simple', failed to poll from model repository: config.pbtxt:1:1: unknown field")
	serving("max_batchsize")

	rewrite(t, config, strings.Replace(string(good), "OUTPUT1", "NO_SUCH", 1))
	s.control(t, "load", "simple", "", 400, "load failed for model 'simple'")
	serving("NO_SUCH")

	rewrite(t, config, string(good))
	rewrite(t, filepath.Join(dir, "simple", "1", "model.onnx"), "no model")
	s.control(t, "load", "simple", "", 400, "load failed for model 'simple': version 1 is at UNAVAILABLE state: ")
	serving("load failed for model 'simple'")

	model, err := os.ReadFile(filepath.Join(examples(t), "simple", "1", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "simple", "2"), 0o755); err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(dir, "simple", "1", "model.onnx"), string(model))
	rewrite(t, filepath.Join(dir, "simple", "2", "model.onnx"), "no model")
	s.control(t, "load", "simple", "", 400, "version 2 is at UNAVAILABLE state")
	s.wantIndex(entry{"echo", "1", "READY", ""}, entry{"simple", "1", "READY", "version 2 is at"}, entry{"simple", "2", "UNAVAILABLE", "model.onnx"})
	l.more(20)

	rewrite(t, filepath.Join(dir, "simple", "2", "model.onnx"), string(model))
	s.control(t, "load", "simple", "", 200, "")
	s.wantIndex(entry{"echo", "1", "READY", ""}, entry{"simple", "1", "UNAVAILABLE", "unloaded"}, entry{"simple", "2", "READY", ""})
	l.more(20)
	l.end()
}

func TestVersionPoliciesAreFollowed(t *testing.T) {
	policy := func(text string) string { return echo(0) + "version_policy { " + text + " }" }
	dir := repository(t, map[string]string{
		"m/config.pbtxt": policy("latest { num_versions: 1 }"), "m/1/a": "", "m/2/a": "", "m/3/a": "",
	})
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=m")
	seen := map[string]bool{} // versions that were served
	for _, tt := range []struct {
		policy   string
		versions []string
	}{
		{"latest { num_versions: 1 }", []string{"3"}},
		{"all { }", []string{"1", "2", "3"}},
		{"specific { versions: [1, 2] }", []string{"1", "2"}},
		{"specific { versions: 1 }", []string{"1"}},
		{"latest { num_versions: 2 }", []string{"2", "3"}},
	} {
		rewrite(t, filepath.Join(dir, "m", "config.pbtxt"), policy(tt.policy))
		s.control(t, "load", "m", "", 200, "")
		var want []entry
		for _, version := range []string{"1", "2", "3"} {
			switch {
			case slices.Contains(tt.versions, version):
				seen[version] = true
				want = append(want, entry{"m", version, "READY", ""})
				s.infer(t, "m/versions/"+version, http.StatusOK)
			case seen[version]:
				want = append(want, entry{"m", version, "UNAVAILABLE", "unloaded"})
				s.infer(t, "m/versions/"+version, http.StatusServiceUnavailable)
			default:
				s.infer(t, "m/versions/"+version, http.StatusNotFound)
			}
		}
		s.wantIndex(want...)
	}
}

func TestOverridesEnd(t *testing.T) {
	dir := reloadable(t)
	s := start(t, dir, "--model-control-mode=explicit", "--load-model=*")
	outputs := func() string {
		t.Helper()
		_, text := s.do(http.MethodPost, s.HTTP+"/v2/models/echo/infer", one)
		return text
	}
	config := `{"backend":"echo","max_batch_size":2,"input":[{"name":"x","data_type":"TYPE_INT32","dims":[1]}],` +
		`"output":[{"name":"given","data_type":"TYPE_INT32","dims":["1"]}]}`
	body := func(parameters map[string]string) string {
		text, err := json.Marshal(map[string]any{"parameters": parameters})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s.control(t, "load", "echo", body(map[string]string{"config": config}), 200, "")
	if text := outputs(); !strings.Contains(text, `"name":"given"`) {
		t.Errorf("with another configuration: %s", text)
	}
	s.control(t, "unload", "echo", "", 200, "")
	s.control(t, "load", "echo", "", 200, "")
	if text := outputs(); !strings.Contains(text, `"name":"y"`) {
		t.Errorf("after an unload: %s", text)
	}

	model, err := os.ReadFile(filepath.Join(examples(t), "simple", "1", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"config": `{"backend":"onnxruntime"}`, "file:7/model.onnx": base64.StdEncoding.EncodeToString(model)}
	for _, name := range []string{"simple", "brandnew"} { // one of them is in no repository
		s.control(t, "load", name, body(files), 200, "")
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+name+"/versions/7/infer", addSub()); status != http.StatusOK {
			t.Errorf("a model of given files: %d %s", status, text)
		}
	}
	s.control(t, "load", "simple", body(map[string]string{"config": "{}", "file:../1/model.onnx": "AAAA"}), 500, "failed to load 'simple', failed to poll from model repository: Invalid file parameter 'file:../1/model.onnx'")
	s.control(t, "load", "simple", body(map[string]string{"config": "{}", "file:1/model.onnx": "AAAA"}), 400, "load failed for model 'simple'")
	s.control(t, "load", "simple", body(map[string]string{"config": "{}", "file:1/model.onnx": "?"}), 400, "base64")
	s.control(t, "unload", "brandnew", "", 200, "")
	s.control(t, "load", "brandnew", "", 500, "failed to poll from model repository")
	s.control(t, "load", "simple", "", 200, "")
	s.wantIndex(entry{"brandnew", "7", "UNAVAILABLE", "unloaded"}, entry{"echo", "1", "READY", ""}, entry{"simple", "1", "READY", ""}, entry{"simple", "7", "UNAVAILABLE", "unloaded"})
}

func TestStartsThatFail(t *testing.T) {
	dir := repository(t, map[string]string{"a/config.pbtxt": echo(0), "a/1/.keep": ""})
	for name, tt := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"--load-model in another mode":   {[]string{"--load-model=a"}, 64, "--model-control-mode=explicit"},
		"* beside others":                {[]string{"--model-control-mode=explicit", "--load-model=*", "--load-model=a"}, 64, "--load-model=*"},
		"a model that is not there":      {[]string{"--model-control-mode=explicit", "--load-model=b"}, 1, "failed to load all models"},
		"an unknown mode":                {[]string{"--model-control-mode=often"}, 64, "often"},
		"a name that leaves its dir":     {[]string{"--model-control-mode=explicit", "--load-model=../a"}, 64, "--load-model=../a: no model can have that name"},
		"poll with a model that is none": {[]string{"--model-control-mode=poll", "--model-repository", repository(t, map[string]string{"x/1/f": ""})}, 1, "failed to load all models"},
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, dir, tt.args...)
			if status := s.exit(); status != tt.status || !strings.Contains(s.text(), tt.want) {
				t.Errorf("exit status %d, want %d with %q in the log", status, tt.status, tt.want)
			}
		})
	}
}

func TestFailedLoadsAreTriedAgain(t *testing.T) {
	dir := repository(t, map[string]string{"bad/config.pbtxt": vector(""), "bad/1/model.onnx": "damaged"})
	s := start(t, dir, "--model-control-mode=explicit", "--model-load-retry-count=2")
	s.control(t, "load", "bad", "", 400, "load failed for model 'bad': version 1 is at UNAVAILABLE state:")
	s.wantMetrics(`nereid_worker_load_seconds_count{outcome="failure"} 3`)
	s.stop()
	if n := strings.Count(s.text(), "model not loaded: trying again"); n != 2 {
		t.Errorf("tried again %d times, want 2", n)
	}
}

func TestReadinessInEachMode(t *testing.T) {
	dir := repository(t, map[string]string{
		"good/config.pbtxt": echo(0), "good/1/.keep": "", "bad/config.pbtxt": vector(""), "bad/1/model.onnx": "damaged",
		"unknown/config.pbtxt": `backend: "mine"`, "unknown/1/.keep": "", "unread/config.pbtxt": "input {", "unread/1/.keep": "",
		"versionless/config.pbtxt": echo(0),
	})
	for name, tt := range map[string]struct {
		args   []string
		status int
	}{
		"strict, a model failed":          {[]string{"--exit-on-error=false"}, 400},
		"not strict, a model failed":      {[]string{"--exit-on-error=false", "--strict-readiness=false"}, 200},
		"explicit, nothing loaded":        {[]string{"--model-control-mode=explicit"}, 200},
		"explicit, the good one":          {[]string{"--model-control-mode=explicit", "--load-model=good"}, 200},
		"explicit, the bad one":           {[]string{"--model-control-mode=explicit", "--load-model=bad", "--exit-on-error=false"}, 400},
		"explicit, one that is not there": {[]string{"--model-control-mode=explicit", "--load-model=nosuch", "--exit-on-error=false"}, 200},
		"poll, a model failed":            {[]string{"--model-control-mode=poll", "--exit-on-error=false"}, 400},
		"explicit, an unknown backend":    {[]string{"--model-control-mode=explicit", "--load-model=unknown", "--exit-on-error=false"}, 400},
		"explicit, one without versions":  {[]string{"--model-control-mode=explicit", "--load-model=versionless", "--exit-on-error=false"}, 400},
		"explicit, one that is no model":  {[]string{"--model-control-mode=explicit", "--load-model=unread", "--exit-on-error=false"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, dir, tt.args...)
			s.eventually("readiness", func() bool { // a registry apart asks workers about the unknown backend
				status, _ := s.do(http.MethodGet, s.HTTP+"/v2/health/ready", "")
				return status == tt.status
			})
			if status, _ := s.do(http.MethodGet, s.HTTP+"/v2/health/live", ""); status != http.StatusOK {
				t.Errorf("live: %d", status)
			}
		})
	}
}

func TestVersionOfAnUnknownBackendIsUnavailable(t *testing.T) {
	dir := repository(t, map[string]string{"m/config.pbtxt": `backend: "mine"`, "m/1/.keep": ""})
	for _, args := range [][]string{nil, {"--model-control-mode=explicit", "--load-model=m"}} {
		s := start(t, dir, append(args, "--exit-on-error=false")...)
		s.untilIndex(func(list []entry) bool { // a registry apart asks workers about it
			return len(list) == 1 && list[0].Version == "1" && strings.Contains(list[0].Reason, "this server has no backend 'mine'")
		})
		s.wants(t, http.MethodGet, "/v2/health/ready", http.StatusBadRequest, "")
		if args != nil {
			s.control(t, "load", "m", "", http.StatusBadRequest, "load failed for model 'm': version 1 is at UNAVAILABLE state: ")
		}
	}
}

func TestPollFollowsTheRepository(t *testing.T) {
	dir := reloadable(t)
	s := start(t, dir, "--model-control-mode=poll", "--repository-poll-secs=1")
	has := func(want string) {
		t.Helper()
		s.untilIndex(func(list []entry) bool {
			for _, e := range list {
				if strings.Contains(strings.Join([]string{e.Name, e.Version, e.State, e.Reason}, " "), want) {
					return true
				}
			}
			return false
		})
	}
	if err := os.CopyFS(filepath.Join(dir, "late"), os.DirFS(filepath.Join(dir, "echo"))); err != nil {
		t.Fatal(err)
	}
	has("late 1 READY")
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	has("dangling  UNAVAILABLE model directory")
	if err := os.Remove(filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	rewrite(t, filepath.Join(dir, "late", "config.pbtxt"), "broken")
	has("late 1 READY config.pbtxt")
	s.infer(t, "late", http.StatusOK)
	if err := os.RemoveAll(filepath.Join(dir, "late")); err != nil {
		t.Fatal(err)
	}
	s.untilIndex(func(list []entry) bool { return len(list) == 2 })
	s.infer(t, "late", http.StatusNotFound)
}

func (s *server) untilIndex(holds func([]entry) bool) {
	s.t.Helper()
	s.until("the index", s.HTTP+"/v2/health/live", func(string) bool { return holds(s.index()) })
}

func TestRealClientsLoadAndUnload(t *testing.T) {
	s := start(t, reloadable(t), "--model-control-mode=explicit")
	model := filepath.Join(examples(t), "simple", "1", "model.onnx")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC, "MODEL=" + model}, "test/e2e/clients/test_repository.py", "-v")
}
