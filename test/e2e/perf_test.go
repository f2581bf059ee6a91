package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// TestPerfMeasuresAServer runs each kind of load against a server. Requests that fail
// would show that the tool's own encoding of them is wrong.
func TestPerfMeasuresAServer(t *testing.T) {
	config := `backend: "onnxruntime" max_batch_size: 8
		input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }] output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]`
	s := start(t, repository(t, map[string]string{
		"plain/config.pbtxt": config, "plain/1/model.onnx": string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes()),
		"state/config.pbtxt": config + ` sequence_batching { }`, "state/1/model.onnx": string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes()),
		"words/config.pbtxt": `backend: "repeat" model_transaction_policy { decoupled: true }
			input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }, { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
			output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]`, "words/1/.keep": "",
	}), "--allow-client-shm=true")
	dir := t.TempDir()
	data := filepath.Join(dir, "data.json")
	if err := os.WriteFile(data, []byte(`{"data": [{"IN": [1, 2, 3], "DELAY": [0, 0, 0], "WAIT": [0]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"closed":                 {"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--concurrency=3"},
		"open":                   {"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--rate=100", "--timeout=10s"},
		"grpc":                   {"plain", "-i", "gRPC", "-u", s.GRPC, "--shape", "INPUT0:4", "-b", "2", "--request-rate-range=100:100", "--request-distribution=constant"},
		"sequences":              {"state", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--concurrency=3", "--sequence-length=5"},
		"sequences over grpc":    {"state", "--protocol=grpc", "--url=" + s.GRPC, "--shape=INPUT0=1,4", "--rate=100", "--sequence-length=5"},
		"sequences over streams": {"state", "--protocol=grpc", "--streaming", "--url=" + s.GRPC, "--shape=INPUT0=1,4", "--concurrency-range=2:3", "--sequence-length=5"},
		"streams":                {"words", "--protocol=grpc", "--streaming", "--url=" + s.GRPC, "--input-data=" + data, "--concurrency=2"},
		"shared memory":          {"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--concurrency=3", "--shared-memory=system"},
		"shared memory and grpc": {"state", "--protocol=grpc", "--url=" + s.GRPC, "--shape=INPUT0=1,4", "--rate=100", "--sequence-length=3", "--shared-memory", "system", "--output-shared-memory-size", "64"},
		"several models":         {"-m", "plain=3", "-m", "state=1", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--sequence-length=1", "--concurrency=2"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "report.json")
			args = append([]string{"perf", "--duration=300ms", "--warmup=0s", "--metrics-url=" + s.models.said().Metrics + "/metrics", "--json=" + file, "--fail-if=errors>0"}, args...)
			out, problems, status := nereid(t, args...)
			if status != 0 {
				t.Fatalf("%d %s%s", status, out, problems)
			}
			var report struct {
				Runs []struct {
					All struct {
						Answered  int64
						Responses struct{ Value float64 }
						Rate      struct{ Value float64 }
					}
					Server struct{ Inferences float64 }
				}
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &report); err != nil {
				t.Fatal(err)
			}
			for _, run := range report.Runs {
				if run.All.Answered == 0 || !clustered() && run.Server.Inferences == 0 {
					t.Errorf("nothing was answered, or the server counted nothing: %s", text)
				}
				if name == "streams" && run.All.Responses.Value < 2.9*run.All.Rate.Value {
					t.Errorf("three responses to a request are counted as %v to %v", run.All.Responses.Value, run.All.Rate.Value)
				}
			}
		})
	}
	if left, err := filepath.Glob("/dev/shm/perf-*"); err != nil || len(left) > 0 {
		t.Errorf("%v stay behind (%v)", left, err)
	}
	for want, args := range map[string][]string{
		"errors>0 holds":               {"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--shared-memory=system", "--output-shared-memory-size=3", "--duration=100ms", "--warmup=0s", "--metrics-url=none", "--fail-if=errors>0"},
		"want none or system":          {"plain", "--shared-memory=cuda"},
		"name a model":                 {},
		"is not found":                 {"missing", "--url=" + s.HTTP},
		"state the shape":              {"plain", "--url=" + s.HTTP},
		"leave --concurrency":          {"plain", "--slo=p99=1s", "--rate=1"},
		"want a percentile":            {"plain", "--slo=99"},
		"want poisson":                 {"plain", "--rate=1", "--arrivals=sometimes"},
		"want numbers above 0":         {"plain", "--concurrency=0"},
		"want a figure":                {"plain", "--fail-if=p99=1s"},
		"want a host and a port":       {"plain", "--url=localhost"},
		"errors<1% holds at 1 at a ti": {"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--duration=100ms", "--warmup=0s", "--metrics-url=none", "--fail-if=errors<1%"},
	} {
		if out, problems, status := nereid(t, append([]string{"perf"}, args...)...); status == 0 || !strings.Contains(problems, want) {
			t.Errorf("%v: want %q: %d %s%s", args, want, status, out, problems)
		}
	}
}

// TestPerfFindsTheRate looks for the limit of a server that takes 20 ms for a
// request: 50 in a second.
func TestPerfFindsTheRate(t *testing.T) {
	s := start(t, repository(t, map[string]string{"echo/config.pbtxt": `backend: "echo" max_batch_size: 0
		parameters { key: "execute_us" value { string_value: "20000" } }
		input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }] output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }]`, "echo/1/.keep": ""}))
	out, problems, status := nereid(t, "perf", "echo", "--url="+s.HTTP, "--slo=p99=2s", "--arrivals=constant", "--budget=10s", "--metrics-url=none")
	if status != 0 || !strings.Contains(out, "requests per second") || !strings.Contains(out, "TRIED/S") {
		t.Errorf("%d %s%s", status, out, problems)
	}
}

// TestRecordedRequestsAreSentAgain records what clients send over both protocols, sends it again
// over each, and holds the responses against the recorded ones.
func TestRecordedRequestsAreSentAgain(t *testing.T) {
	config := `backend: "onnxruntime" max_batch_size: 8
		input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }] output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }]`
	identity := string(onnxmodel.Identity(tensor.FP32, "b", "n").Bytes())
	files := map[string]string{
		"plain/config.pbtxt": config, "plain/1/model.onnx": identity,
		"state/config.pbtxt": config + ` sequence_batching { }`, "state/1/model.onnx": identity,
	}
	s := start(t, repository(t, files), "--allow-recording=true")
	file := filepath.Join(t.TempDir(), "requests.rec")
	recorded := make(chan string, 1)
	go func() {
		out, problems, status := nereid(t, "record", "--url="+s.HTTP, "--for=4s", "--answers", "--out="+file)
		recorded <- fmt.Sprint(status, " ", out, problems)
	}()
	for { // the recording has started when its first bytes are there
		if about, err := os.Stat(file); err == nil && about.Size() > 0 {
			break
		}
		select {
		case how := <-recorded:
			t.Fatalf("the recording ended: %s", how)
		case <-time.After(10 * time.Millisecond):
		}
	}
	for _, args := range [][]string{
		{"plain", "--url=" + s.HTTP, "--shape=INPUT0=1,4", "--rate=50"},
		{"state", "--protocol=grpc", "--url=" + s.GRPC, "--shape=INPUT0=1,4", "--rate=50", "--sequence-length=5"},
	} {
		args = append([]string{"perf", "--duration=500ms", "--warmup=0s", "--metrics-url=none", "--fail-if=errors>0"}, args...)
		if out, problems, status := nereid(t, args...); status != 0 {
			t.Fatalf("%d %s%s", status, out, problems)
		}
	}
	if how := <-recorded; !strings.HasPrefix(how, "0 ") || !strings.Contains(how, " 0 lost, ended by duration") {
		t.Fatalf("recording: %s", how)
	}
	again := func(url, protocol string, more ...string) (string, string, int) {
		return nereid(t, append([]string{"perf", "--trace=" + file, "--speed=2", "--verify", "--protocol=" + protocol, "--url=" + url, "--metrics-url=none"}, more...)...)
	}
	for url, protocol := range map[string]string{s.HTTP: "http", s.GRPC: "grpc"} {
		out, problems, status := again(url, protocol, "--fail-if=errors>0")
		if status != 0 || !strings.Contains(out, "0 of ") || strings.Contains(out, "0 of 0") {
			t.Errorf("over %s: %d %s%s", protocol, status, out, problems)
		}
	}
	costs := filepath.Join(t.TempDir(), "costs")
	if err := os.WriteFile(costs, []byte("plain cpu 1 - 1ms\nstate cpu 1 - 1ms\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, problems, status := nereid(t, "simulate", "--trace="+file, "--model-repository="+repository(t, files), "--costs="+costs)
	if status != 0 || !strings.Contains(out, "answered in time") {
		t.Errorf("simulated: %d %s%s", status, out, problems)
	}
	for want, args := range map[string][]string{"--model-repository": {"--costs=" + costs}, "--costs": {"--model-repository=" + t.TempDir()}} {
		if out, problems, status := nereid(t, append([]string{"simulate", "--trace=" + file}, args...)...); status == 0 || !strings.Contains(problems, want) {
			t.Errorf("without %s: %d %s%s", want, status, out, problems)
		}
	}
	// Another model under the name gives other responses, which fail the command.
	for _, name := range []string{"plain", "state"} {
		files[name+"/1/model.onnx"] = string(onnxmodel.Unary("Neg", tensor.FP32, "b", "n").Bytes())
	}
	other := start(t, repository(t, files))
	if out, problems, status := again(other.HTTP, "http"); status == 0 || !strings.Contains(problems, "responses differ from the recorded ones") {
		t.Errorf("others are taken for the same: %d %s%s", status, out, problems)
	}
	for want, args := range map[string][]string{
		"leave out the model":     {"--trace=" + file, "plain"},
		"--speed is 0":            {"--trace=" + file, "--speed=0"},
		"compares with a recordi": {"plain", "--verify"},
		"is no recording":         {"--trace=" + "perf_test.go"},
		"cannot be read":          {"--trace=none.rec"},
	} {
		if out, problems, status := nereid(t, append([]string{"perf"}, args...)...); status == 0 || !strings.Contains(problems, want) {
			t.Errorf("%v: want %q: %d %s%s", args, want, status, out, problems)
		}
	}
}
