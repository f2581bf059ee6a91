package e2e

import (
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// said is a repository of the files that more has, and of four models: said gives its
// parameters as OUT, in JSON; caller those that its call of said has got; composed is an
// ensemble of said; counted gives N responses one by one.
func said(t *testing.T, more map[string]string) string {
	t.Helper()
	const text = ` input { name: "TEXT" data_type: TYPE_STRING dims: -1 } output { name: "OUT" data_type: TYPE_STRING dims: 1 }`
	files := map[string]string{
		"said/config.pbtxt": `backend: "python"` + text,
		"said/1/model.py": `import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([r.parameters().encode()], np.object_))]) for r in requests]
`,
		"caller/config.pbtxt": `backend: "python"` + text,
		"caller/1/model.py": `import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for r in requests:
            inputs = [pb_utils.get_input_tensor_by_name(r, "TEXT")]
            called = pb_utils.InferenceRequest(model_name="said", requested_output_names=["OUT"], inputs=inputs).exec()
            responses.append(pb_utils.InferenceResponse(called.output_tensors()))
        return responses
`,
		"composed/config.pbtxt": `platform: "ensemble"` + text + ` ensemble_scheduling { step {
  model_name: "said" model_version: -1 input_map { key: "TEXT" value: "TEXT" } output_map { key: "OUT" value: "OUT" } } }`,
		"counted/config.pbtxt": `backend: "python" model_transaction_policy { decoupled: true }
input { name: "N" data_type: TYPE_INT32 dims: 1 } output { name: "I" data_type: TYPE_INT32 dims: 1 }`,
		"counted/1/model.py": `import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for i in range(pb_utils.get_input_tensor_by_name(r, "N").as_numpy()[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([i], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`,
		"composed/1/.keep": "",
	}
	maps.Copy(files, more)
	return repository(t, files)
}

// TestClientAPI has real clients generate, change the log, and send headers that reach
// models.
func TestClientAPI(t *testing.T) {
	s := start(t, said(t, nil), "--http-header-forward-pattern=^x-", "--grpc-header-forward-pattern=^X-")
	python(t, []string{"HTTP_URL=" + s.HTTP, "GRPC_URL=" + s.GRPC}, "test/e2e/clients/test_client_api.py", "-v")
	const want = `data: {"I":0,"model_name":"counted","model_version":"1"}` + "\n\n"
	if got := curled(t, "--no-buffer", "--data", `{"N":1}`, s.HTTP+"/v2/models/counted/generate_stream"); got != want {
		t.Errorf("curl gets %q, want %q", got, want)
	}
	s.wantMetrics(inFlight(0))
}

// curled runs curl, and returns what it writes. Its failure is what some callers expect.
func curled(t *testing.T, args ...string) string {
	t.Helper()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	out, _ := exec.CommandContext(t.Context(), curl, append([]string{"--silent", "--max-time", "30"}, args...)...).Output()
	return string(out)
}

// TestTLSOverHTTP has curl speak TLS to HTTP and metrics, with a certificate of its own.
func TestTLSOverHTTP(t *testing.T) {
	inOneProcess(t)
	dir := certificates(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	var flags []string
	for _, listener := range []string{"--http", "--metrics"} {
		flags = append(flags, listener+"-use-ssl-mutual=true", listener+"-server-cert="+file("server.pem"), listener+"-server-key="+file("server.key"), listener+"-root-cert="+file("root.pem"))
	}
	s := start(t, said(t, nil), flags...)
	for _, address := range []string{s.HTTP + "/v2/health/live", s.said().Metrics + "/metrics"} {
		address = "https://localhost:" + address[strings.LastIndex(address, ":")+1:]
		curl := func(more ...string) string {
			return curled(t, append(more, "--output", "/dev/null", "--write-out", "%{http_code} %{http_version}", "--cacert", file("root.pem"), address)...)
		}
		if got := curl("--cert", file("client.pem"), "--key", file("client.key")); got != "200 1.1" {
			t.Errorf("%s: %s", address, got)
		}
		if got := curl(); got != "000 0" && got != "000 1.1" {
			t.Errorf("%s without a certificate: %s", address, got)
		}
	}
}
