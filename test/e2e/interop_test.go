package e2e

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// tool is a foreign client that make interop-test fetches and names by a variable.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skip(variable + " names nothing: make interop-test does, where this machine's Python and processor have the tool")
	}
	return path
}

// foreign serves what the foreign clients ask for: numbers gives its two inputs back, words
// its texts, square as many responses as its input says, and sequence sums up.
func foreign(t *testing.T) *server {
	t.Helper()
	tensor := func(kind, name, datatype, dims string) string {
		return fmt.Sprintf("%s { name: %q data_type: TYPE_%s dims: [ %s ] }\n", kind, name, datatype, dims)
	}
	control := func(name string) string {
		return fmt.Sprintf(`control_input { name: %q control { kind: CONTROL_SEQUENCE_%[1]s int32_false_true: [ 0, 1 ] } }`, name)
	}
	files := map[string]string{
		"numbers": "backend: \"echo\" max_batch_size: 8\n" +
			tensor("input", "INPUT0", "INT32", "16") + tensor("input", "INPUT1", "INT32", "16") + tensor("output", "OUTPUT0", "INT32", "16") + tensor("output", "OUTPUT1", "INT32", "16"),
		"words":  "backend: \"echo\" max_batch_size: 8\n" + tensor("input", "INPUT0", "STRING", "-1") + tensor("output", "OUTPUT0", "STRING", "-1"),
		"square": "backend: \"square\" model_transaction_policy { decoupled: true }\n" + tensor("input", "IN", "INT32", "1") + tensor("output", "OUT", "INT32", "1"),
		"sequence": "backend: \"sequence\" max_batch_size: 2 instance_group { count: 1 kind: KIND_CPU }\n" + tensor("input", "INPUT", "INT32", "1") + tensor("output", "OUTPUT", "INT32", "1") +
			"sequence_batching { direct { } max_sequence_idle_microseconds: 600000000 " + control("START") + control("READY") + " }",
	}
	models := make(map[string]string)
	for name, config := range files {
		models[name+"/config.pbtxt"], models[name+"/1/.keep"] = config, ""
	}
	return start(t, repository(t, models), "--allow-client-shm=true")
}

func TestKServeSDK(t *testing.T) {
	t.Setenv("NEREID_PYTHON", tool(t, "NEREID_KSERVE_PYTHON"))
	s := foreign(t)
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_kserve.py", "-v")
	s.wantMetrics(inFlight(0))
}

// TestGRPCurl has grpcurl find the services by reflection, and call them with JSON.
func TestGRPCurl(t *testing.T) {
	grpcurl := tool(t, "NEREID_GRPCURL")
	s := foreign(t)
	row, err := json.Marshal(slices.Repeat([]int{7}, 16))
	if err != nil {
		t.Fatal(err)
	}
	input := `{"name": "%s", "datatype": "INT32", "shape": [1, 16], "contents": {"int_contents": ` + string(row) + `}}`
	request := `{"model_name": "%s", "id": "mine", "inputs": [` + fmt.Sprintf(input, "INPUT0") + "," + fmt.Sprintf(input, "INPUT1") + `]}`
	raw := base64.StdEncoding.EncodeToString(slices.Repeat(binary.LittleEndian.AppendUint32(nil, 7), 16))
	const service = "inference.GRPCInferenceService"
	for name, c := range map[string]struct {
		data, call string
		want       []string
	}{
		"lists":      {"", "list", []string{service, "grpc.health.v1.Health"}},
		"describes":  {"", "describe " + service + ".ModelInfer", []string{"rpc ModelInfer ( .inference.ModelInferRequest ) returns ( .inference.ModelInferResponse );"}},
		"health":     {"", "grpc.health.v1.Health/Check", []string{`"status": "SERVING"`}},
		"ready":      {"", service + "/ServerReady", []string{`"ready": true`}},
		"infer":      {fmt.Sprintf(request, "numbers"), service + "/ModelInfer", []string{`"id": "mine"`, `"` + raw + `"`}},
		"streams":    {fmt.Sprintf(request, "numbers"), service + "/ModelStreamInfer", []string{`"inferResponse"`, `"` + raw + `"`}},
		"configures": {`{"name": "numbers"}`, service + "/ModelConfig", []string{`"maxBatchSize": 8`}},
		"refuses":    {fmt.Sprintf(request, "none"), service + "/ModelInfer", []string{"Code: NotFound", "Request for unknown model: 'none' is not found", `"reason": "model_not_found"`}},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"-plaintext", "-max-time", "60"}
			if c.data != "" {
				args = append(args, "-d", c.data)
			}
			// The failure of the call is what one row expects, with its text.
			out, _ := exec.CommandContext(t.Context(), grpcurl, slices.Concat(args, []string{s.GRPC}, strings.Fields(c.call))...).CombinedOutput()
			if i := slices.IndexFunc(c.want, func(want string) bool { return !strings.Contains(string(out), want) }); i >= 0 {
				t.Errorf("there is no %s in\n%s", c.want[i], out)
			}
		})
	}
	s.wantMetrics(inFlight(0))
}

// TestPerfAnalyzer has the real perf_analyzer measure models in every way that it has, and
// compare the outputs with those that it is told.
func TestPerfAnalyzer(t *testing.T) {
	analyzer, libraries := tool(t, "NEREID_PERF_ANALYZER"), os.Getenv("NEREID_PERF_ANALYZER_LIBRARIES")
	s := foreign(t)
	dir := t.TempDir()
	numbers := func(name string, output int) string {
		inputs := make([]int32, 16)
		for i := range inputs {
			inputs[i] = int32(i) //nolint:gosec // 16 at most
		}
		bytes, err := binary.Append(nil, binary.LittleEndian, inputs)
		if err != nil {
			t.Fatal(err)
		}
		outputs := slices.Clone(inputs)
		outputs[0] = int32(output) //nolint:gosec // given below
		text, err := json.Marshal(map[string]any{
			"data":            []any{map[string]any{"INPUT0": inputs, "INPUT1": map[string]string{"b64": base64.StdEncoding.EncodeToString(bytes)}}},
			"validation_data": []any{map[string]any{"OUTPUT0": outputs, "OUTPUT1": inputs}},
		})
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(text))
		return "--input-data=" + filepath.Join(dir, name)
	}
	right, wrong := numbers("right.json", 0), numbers("wrong.json", 1)
	write(t, filepath.Join(dir, "three.json"), `{"data": [{"IN": [3]}]}`)
	requests := func(n int) string { return fmt.Sprintf("--request-count=%d", n) }
	rows := map[string]struct {
		protocol, model string
		args            []string
		want            string
	}{
		"closed":                        {"http", "numbers", []string{"--concurrency-range=2", requests(40)}, "throughput:"},
		"closed, asynchronous":          {"grpc", "numbers", []string{"--async", "--concurrency-range=2", requests(40)}, "throughput:"},
		"rate":                          {"http", "numbers", []string{"--request-rate-range=50", requests(50)}, "Request Rate: 50"},
		"rate over gRPC":                {"grpc", "numbers", []string{"--request-rate-range=50", "--request-distribution=poisson", requests(50)}, "Request Rate: 50"},
		"windows":                       {"grpc", "numbers", []string{"--measurement-interval=100", "--stability-percentage=999", "--concurrency-range=1:2"}, "Concurrency: 2, throughput:"},
		"texts":                         {"http", "words", []string{"--shape=INPUT0:4", "--string-length=16", "-b", "2", requests(40)}, "throughput:"},
		"streaming":                     {"grpc", "square", []string{"--streaming", "--async", "--input-data=" + filepath.Join(dir, "three.json"), "--concurrency-range=2", requests(40)}, "Response Throughput:"},
		"sequences":                     {"grpc", "sequence", []string{"--streaming", "--async", "--num-of-sequences=2", "--sequence-length=5", "--request-rate-range=50", requests(50)}, "throughput:"},
		"sequences over HTTP":           {"http", "sequence", []string{"--concurrency-range=2", "--sequence-length=5", requests(40)}, "throughput:"},
		"shared memory":                 {"http", "numbers", []string{"--shared-memory=system", requests(40)}, "throughput:"},
		"shared memory over gRPC":       {"grpc", "numbers", []string{"--shared-memory=system", "--async", "--concurrency-range=2", requests(40)}, "throughput:"},
		"shared memory for streams":     {"grpc", "sequence", []string{"--shared-memory=system", "--streaming", "--async", "--sequence-length=5", requests(40)}, "throughput:"},
		"memory of a GPU, another":      {"grpc", "numbers", []string{"--shared-memory=cuda", requests(10)}, "GPUs not supported"},
		"tensors in JSON":               {"http", "numbers", []string{"--input-tensor-format=json", "--output-tensor-format=json", requests(40)}, "throughput:"},
		"data":                          {"grpc", "numbers", []string{right, requests(40)}, "throughput:"},
		"data over HTTP":                {"http", "numbers", []string{right, requests(40)}, "throughput:"},
		"data that is another response": {"http", "numbers", []string{wrong, requests(10)}, "Output doesn't match expected output"},
		"metrics of the server":         {"http", "numbers", []string{"--measurement-interval=1500", "--stability-percentage=999", "--collect-metrics", "--metrics-url=" + s.said().Metrics + "/metrics"}, "throughput:"},
	}
	t.Run("rows", func(t *testing.T) {
		for name, c := range rows {
			t.Run(name, func(t *testing.T) {
				if !strings.Contains(strings.Join(c.args, " "), "--shared-memory") { // each run names its regions alike
					t.Parallel()
				}
				url := map[string]string{"http": s.HTTP, "grpc": s.GRPC}[c.protocol]
				command := exec.CommandContext(t.Context(), analyzer, slices.Concat([]string{"-m", c.model, "-i", c.protocol, "-u", url}, c.args)...)
				command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libraries)
				out, err := command.CombinedOutput()
				if fails := strings.Contains(name, "another"); (err != nil) != fails || !strings.Contains(string(out), c.want) {
					t.Errorf("%v, and there may be no %q in\n%s", err, c.want, out)
				}
			})
		}
	})
	s.wantMetrics(inFlight(0), "nereid_gateway_shared_memory_regions 0")
}

// TestMetricsAreWellNamed holds the metrics against the rules that promtool checks. Triton's
// names break some: a counter without _total, units other than seconds and bytes.
func TestMetricsAreWellNamed(t *testing.T) {
	s := start(t, examples(t), "--metrics-config=summary_latencies=true", "--metrics-config=histogram_latencies=true")
	python(t, nil, "examples/clients/classify.py", "--protocol", "grpc", "--url", s.GRPC, "examples/images/0_a.png")
	for _, p := range s.all {
		address := p.said().Metrics
		if address == "" {
			continue
		}
		status, text := s.do("GET", address+"/metrics", "")
		if status != 200 || !strings.Contains(text, "nereid_") {
			t.Fatalf("%s: %d %s", p.name, status, text)
		}
		problems, err := promlint.New(strings.NewReader(text)).Lint()
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
		for _, problem := range problems {
			if !strings.HasPrefix(problem.Metric, "nv_") || strings.Contains(problem.Text, "help text") {
				t.Errorf("%s: %s: %s", p.name, problem.Metric, problem.Text)
			}
		}
	}
}
