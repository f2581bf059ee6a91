package rest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// probed is the response to a probe, which has no body.
func probed(status int) response {
	return response{Status: status, Header: map[string]string{"Content-Type": "text/plain", "Content-Length": "0"}}
}

func success(body string) response {
	return response{Status: 200, Header: map[string]string{"Content-Type": "application/json"}, Body: body}
}

// repository is a set of models in all their states.
func repository() []*core.Model {
	text := model("my model", 0, []modelconfig.IO{tensorIO("T", tensor.Bytes)}, []modelconfig.IO{tensorIO("S", tensor.FP32, 2, -1)})
	text.Versions[0].Config.Platform, text.Versions[0].Config.Backend = "", "python"
	many := simple(16)
	many.Versions = append(many.Versions, &core.Version{
		Ref: infer.ModelRef{Name: "simple", Version: 3}, Config: many.Versions[0].Config, State: infer.Ready,
	}, &core.Version{
		Ref: infer.ModelRef{Name: "simple", Version: 4}, Config: many.Versions[0].Config, State: infer.Loading,
	})
	return []*core.Model{text, many, {Name: "broken", Problem: "no version", LoadFailed: true}}
}

func TestControlEndpointsRespondAsTriton(t *testing.T) {
	const simpleIO = `"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[-1,16]},{"name":"INPUT1","datatype":"INT32","shape":[-1,16]}],` +
		`"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[-1,16]},{"name":"OUTPUT1","datatype":"INT32","shape":[-1,16]}]}`
	const allModels = `[{"name":"broken","state":"UNAVAILABLE","reason":"no version"},{"name":"my model","version":"1","state":"READY"},` +
		`{"name":"simple","version":"1","state":"READY"},{"name":"simple","version":"3","state":"READY"},{"name":"simple","version":"4","state":"LOADING"}]`
	const readyModels = `[{"name":"my model","version":"1","state":"READY"},{"name":"simple","version":"1","state":"READY"},{"name":"simple","version":"3","state":"READY"}]`
	notFound := refusal(404, "Not Found", "path_not_found")
	noSharing := refusal(501, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.", "unsupported")
	for _, c := range []struct {
		name string
		request
		want response
	}{
		{"live", request{method: "GET", path: "/v2/health/live"}, probed(200)},
		{"not all models are ready", request{method: "GET", path: "/v2/health/ready"}, probed(400)},
		{"server metadata", request{method: "GET", path: "/v2"}, success(`{"name":"nereid","version":"0.1.0","extensions":["binary_tensor_data","parameters"]}`)},
		{"a query changes nothing", request{method: "GET", path: "/v2?x=1"}, success(`{"name":"nereid","version":"0.1.0","extensions":["binary_tensor_data","parameters"]}`)},
		{"model ready", request{method: "GET", path: "/v2/models/simple/ready"}, probed(200)},
		{"version ready", request{method: "GET", path: "/v2/models/simple/versions/3/ready"}, probed(200)},
		{"version not ready", request{method: "GET", path: "/v2/models/simple/versions/4/ready"}, refusal(400, "Model version not ready", "model_not_ready")},
		{"readiness of no model", request{method: "GET", path: "/v2/models/nope/ready"}, refusal(400, "Model version not ready", "model_not_ready")},
		{"readiness of no version", request{method: "GET", path: "/v2/models/simple/versions/9/ready"}, refusal(400, "Model version not ready", "model_not_ready")},
		{"readiness of version 0", request{method: "GET", path: "/v2/models/simple/versions/0/ready"}, refusal(400, "Model version not ready", "model_not_ready")},
		{"regions of system memory", request{method: "GET", path: "/v2/systemsharedmemory/status"}, success(`[]`)},
		{"regions of CUDA memory", request{method: "GET", path: "/v2/cudasharedmemory/status"}, success(`[]`)},
		{"a region of system memory", request{method: "GET", path: "/v2/systemsharedmemory/region/a%20b/status"}, refusal(404, "Unable to find system shared memory region: 'a b'", "region_not_found")},
		{"a region of CUDA memory", request{method: "GET", path: "/v2/cudasharedmemory/region/r/status"}, refusal(404, "Unable to find cuda shared memory region: 'r'", "region_not_found")},
		{"registration of a region", request{method: "POST", path: "/v2/systemsharedmemory/region/r/register", body: `{"key":"/r","byte_size":8}`}, noSharing},
		{"the end of a region", request{method: "POST", path: "/v2/cudasharedmemory/region/r/unregister"}, noSharing},
		{"the end of all regions", request{method: "POST", path: "/v2/systemsharedmemory/unregister"}, noSharing},
		{"an unknown path by an unknown method", request{method: "PURGE", path: "/v1"}, notFound},
		{"model metadata lists all ready versions", request{method: "GET", path: "/v2/models/simple"}, success(`{"name":"simple","versions":["1","3"],"platform":"onnxruntime_onnx",` + simpleIO)},
		{"version metadata lists one", request{method: "GET", path: "/v2/models/simple/versions/1"}, success(`{"name":"simple","versions":["1"],"platform":"onnxruntime_onnx",` + simpleIO)},
		{"an escaped name", request{method: "GET", path: "/v2/models/my%20model"}, success(`{"name":"my model","versions":["1"],"platform":"python","inputs":[{"name":"T","datatype":"BYTES","shape":[]}],"outputs":[{"name":"S","datatype":"FP32","shape":[2,-1]}]}`)},
		{"an escaped slash is part of the name", request{method: "GET", path: "/v2/models/a%2Fready"}, refusal(404, "Request for unknown model: 'a/ready' is not found", "model_not_found")},
		{"a name that is not UTF-8", request{method: "GET", path: "/v2/models/a%ff%22"}, refusal(404, "Request for unknown model: 'a\uFFFD\\\"' is not found", "model_not_found")},
		{"metadata of a version that is not ready", request{method: "GET", path: "/v2/models/simple/versions/4"}, refusal(503, "Request for unknown model: 'simple' version 4 is not at ready state", "model_not_ready")},
		{"metadata of a model without versions", request{method: "GET", path: "/v2/models/broken"}, refusal(404, "Request for unknown model: 'broken' has no available versions", "model_not_found")},
		{"but a model's name may begin like them", request{method: "GET", path: "/v2/models/stats2"}, refusal(404, "Request for unknown model: 'stats2' is not found", "model_not_found")},
		{"or be theirs, for other endpoints", request{method: "GET", path: "/v2/models/stats/ready"}, refusal(400, "Model version not ready", "model_not_ready")},
		{"configuration of a version that is not ready", request{method: "GET", path: "/v2/models/simple/versions/4/config"}, refusal(503, "Request for unknown model: 'simple' version 4 is not at ready state", "model_not_ready")},
		{"configuration of no model", request{method: "GET", path: "/v2/models/nope/config"}, refusal(404, "Request for unknown model: 'nope' is not found", "model_not_found")},
		{"configuration of no number", request{method: "GET", path: "/v2/models/simple/versions/x/config"}, notFound},
		{"statistics of no model", request{method: "GET", path: "/v2/models/nope/stats"}, refusal(400, "requested model 'nope' is not available", "model_unavailable")},
		{"statistics of a version that is not ready", request{method: "GET", path: "/v2/models/simple/versions/4/stats"}, refusal(400, "requested model version is not available for model 'simple'", "model_unavailable")},
		{"statistics of no number", request{method: "GET", path: "/v2/models/simple/versions/x/stats"}, notFound},
		{"index", request{path: "/v2/repository/index"}, success(allModels)},
		{"index of all", request{path: "/v2/repository/index", body: `{"ready":false}`}, success(allModels)},
		{"index of the ready", request{path: "/v2/repository/index", body: `{"ready":true}`}, success(readyModels)},
		{"index of a named repository", request{path: "/v2/repository/any/index", body: `{"ready":true}`}, success(readyModels)},
		{"index by a word", request{path: "/v2/repository/index", body: `{"ready":"yes"}`}, refusal(400, "Invalid value for 'ready': expected a boolean", "invalid_parameter")},
		{"index by no object", request{path: "/v2/repository/index", body: ` [{"ready":true}]`}, success(allModels)},
		{"index by null", request{path: "/v2/repository/index", body: `null`}, success(allModels)},
		{"index by half an array", request{path: "/v2/repository/index", body: `[`}, refusal(500, "failed to parse the request JSON buffer: Invalid value. at 1", "invalid_json")},
		{"index by no JSON", request{path: "/v2/repository/index", body: `{"ready"}`}, refusal(500, "failed to parse the request JSON buffer: Missing a colon after a name of object member. at 8", "invalid_json")},
		{"index by a flood", request{path: "/v2/repository/index", body: strings.Repeat(" ", 65<<10)}, refusal(413, "the body of this request may have at most 65536 bytes", "body_too_large")},
		{"no path", request{method: "GET", path: "/"}, notFound},
		{"the server as a whole", request{method: "OPTIONS", path: "*"}, notFound},
		{"another version of the protocol", request{method: "GET", path: "/v1/models/simple"}, notFound},
		{"a slash too many", request{method: "GET", path: "/v2/"}, notFound},
		{"a slash at the end", request{method: "GET", path: "/v2/models/simple/ready/"}, notFound},
		{"no name", request{method: "GET", path: "/v2/models//ready"}, notFound},
		{"no name at the end", request{method: "GET", path: "/v2/models/"}, notFound},
		{"a version that is no number", request{method: "GET", path: "/v2/models/simple/versions/one"}, notFound},
		{"no version", request{method: "GET", path: "/v2/models/simple/versions/"}, notFound},
		{"an endpoint that is not there", request{path: "/v2/models/simple/explain"}, notFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, repository())
			if d := cmp.Diff(c.want, s.doLike(c.request, c.want)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestWrongMethodNamesTheRightOnes(t *testing.T) {
	s := newServer(t, repository())
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "/v2", "GET, HEAD"},
		{"PUT", "/v2/health/live", "GET, HEAD"},
		{"DELETE", "/v2/models/simple", "GET, HEAD"},
		{"GET", "/v2/models/simple/infer", "POST"},
		{"HEAD", "/v2/models/simple/versions/1/infer", "POST"},
		{"GET", "/v2/repository/index", "POST"},
		{"OPTIONS", "/v2/repository/index", "POST"},
		{"PURGE", "/v2/repository/index", "POST"},
	} {
		want := refusal(405, "Method Not Allowed", "method_not_allowed")
		want.Header["Allow"] = c.allow
		if d := cmp.Diff(want, s.doLike(request{method: c.method, path: c.path}, want)); d != "" {
			t.Errorf("%s %s: %s", c.method, c.path, d)
		}
	}
}
