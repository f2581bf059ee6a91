package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// repository writes models into a new directory: files by path.
func repository(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// echo is the configuration of a model that answers with its input after a
// while.
func echo(micros int) string {
	return fmt.Sprintf(`
backend: "echo"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
parameters [{ key: "execute_us" value: { string_value: "%d" } }]
`, micros)
}

func (s *server) do(method, path, body string) (int, string) {
	request, err := http.NewRequest(method, "http://"+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

const one = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[7]}]}`

func TestFirstSignalDrains(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			s := start(t, repository(t, map[string]string{"slow/config.pbtxt": echo(500_000), "slow/1/.keep": ""}))
			answered := make(chan int, 3)
			for !s.holds(answered) { // a slow machine has answered before it had them all
				for range cap(answered) {
					<-answered
				}
			}
			s.signal(sig)
			for range 3 {
				if status := <-answered; status != http.StatusOK {
					t.Errorf("request in flight: %d, want 200", status)
				}
			}
			if status := s.exit(); status != 0 {
				t.Errorf("exit status %d, want 0", status)
			}
		})
	}
}

// holds sends as many requests to the model slow as there is room for answers,
// of which one runs and the others wait. It reports whether all were in flight
// at once; otherwise all are answered.
func (s *server) holds(answered chan int) (all bool) {
	s.t.Helper()
	for range cap(answered) {
		go func() {
			status, _ := s.do(http.MethodPost, s.HTTP+"/v2/models/slow/infer", one)
			answered <- status
		}()
	}
	s.eventually("all requests to be in flight", func() bool {
		all = strings.Contains(s.metrics(), inFlight(cap(answered)))
		return all || len(answered) == cap(answered)
	})
	return all
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := start(t, repository(t, map[string]string{"slow/config.pbtxt": echo(300_000_000), "slow/1/.keep": ""}))
	go s.do(http.MethodPost, s.HTTP+"/v2/models/slow/infer", one)
	s.inFlight(1)
	s.signal(syscall.SIGINT)
	s.expect("Waiting for in-flight requests to complete.")
	s.signal(syscall.SIGINT)
	if status := s.exit(); status == 0 {
		t.Error("exit status 0 of a process that was cut off")
	}
}

// inFlight waits until the gateway has n requests.
func (s *server) inFlight(n int) {
	s.t.Helper()
	s.wantMetrics(inFlight(n))
}

func inFlight(n int) string { return fmt.Sprintf("nereid_gateway_in_flight_requests %d", n) }

func TestBrokenModelIsNamedAndEndsTheProcess(t *testing.T) {
	files := map[string]string{
		"good/config.pbtxt": echo(0), "good/1/.keep": "",
		"misspelled/config.pbtxt": "backend: \"echo\"\nmax_batchsize: 1\n", "misspelled/1/.keep": "",
		"damaged/config.pbtxt": `platform: "onnxruntime_onnx"
max_batch_size: 1
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]`,
		"damaged/1/model.onnx": "this is no model",
	}
	s := launch(t, repository(t, files))
	if status := s.exit(); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	for _, want := range []string{"misspelled", "damaged", "--exit-on-error=false"} {
		if !strings.Contains(s.text(), want) {
			t.Errorf("the log does not name %q", want)
		}
	}
	for _, want := range []string{"max_batchsize", "model.onnx", "READY"} {
		if !strings.Contains(s.stdout.String(), want) {
			t.Errorf("the table does not show %q:\n%s", want, s.stdout.String())
		}
	}

	s = start(t, repository(t, files), "--exit-on-error=false")
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/good/infer", one); status != http.StatusOK {
		t.Errorf("the good model: %d %s", status, text)
	}
	if status, _ := s.do(http.MethodGet, s.HTTP+"/v2/health/ready", ""); status == http.StatusOK {
		t.Error("ready, under strict readiness, with broken models")
	}
}

func TestMetricsFollowTheRequests(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(1000), "m/1/.keep": ""}))
	for range 3 {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/m/infer", one); status != http.StatusOK {
			t.Fatalf("infer: %d %s", status, text)
		}
	}
	s.wantMetrics(
		`nv_inference_request_success{model="m",version="1"} 3`,
		`nv_inference_count{model="m",version="1"} 3`,
		`nv_inference_exec_count{model="m",version="1"} 3`,
		`nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 0`,
		`nv_inference_pending_request_count{model="m",version="1"} 0`,
		`nereid_gateway_requests_total{model="m",protocol="http",reason="ok"} 3`,
	)
}

func TestUsageErrors(t *testing.T) {
	empty := t.TempDir()
	tests := map[string]struct {
		args   []string
		status int
		want   string
	}{
		"misspelled flag":     {[]string{"serve", "--model-repositry=x"}, 64, "--model-repository"},
		"no repository":       {[]string{"serve"}, 64, "--model-repository=DIR"},
		"unknown command":     {[]string{"sreve"}, 64, "serve"},
		"port out of range":   {[]string{"serve", "--model-repository", empty, "--http-port=70000"}, 64, "--http-port is 70000"},
		"one port twice":      {[]string{"serve", "--model-repository", empty, "--grpc-port=8000"}, 64, "both 8000"},
		"a switch's value":    {[]string{"serve", "--model-repository", empty, "--allow-http=maybe"}, 64, "maybe"},
		"missing repository":  {[]string{"serve", "--model-repository", "/no/such/dir", "--http-port=0", "--grpc-port=0", "--metrics-port=0"}, 1, "/no/such/dir"},
		"an empty name":       {[]string{"serve", "--model-repository", empty, "--model-config-name="}, 64, "--model-config-name is empty"},
		"missing config file": {[]string{"serve", "--config=/no/such/file"}, 64, "/no/such/file"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), program(t, "nereid"), tt.args...).CombinedOutput()
			status := 0
			if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // exec's own
				status = exit.ExitCode()
			}
			if status != tt.status || !strings.Contains(string(out), tt.want) {
				t.Errorf("exit status %d, want %d with %q:\n%s", status, tt.status, tt.want, out)
			}
		})
	}
}

func TestAlmostASettingInTheEnvironment(t *testing.T) {
	t.Setenv("NEREID_LOG_VERBOS", "1")
	launch(t, t.TempDir()).expect("a variable of the environment is no setting and has no effect")
}
