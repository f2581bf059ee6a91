package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// calling is a model with the inputs x and z that answers y with x, after it has
// called another, or with what that has answered. Its order of inputs may be another.
func calling(inputs, more string) string {
	config := "backend: \"echo\"\n" + more
	for _, name := range strings.Fields(inputs) {
		config += "input [{ name: \"" + name + "\" data_type: TYPE_INT32 dims: [1] }]\n"
	}
	return config + "output [{ name: \"y\" data_type: TYPE_INT32 dims: [1] }]\n"
}

func calls(model string) string {
	return "parameters [{ key: \"calls\" value: { string_value: \"" + model + "\" } }]\n"
}

const (
	givesSeveral    = "model_transaction_policy { decoupled: true }\nparameters [{ key: \"responses\" value: { string_value: \"2\" } }]\n"
	both            = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1]},{"name":"z","datatype":"INT32","shape":[1],"data":[2]}]}`
	oneProcessCalls = "calls between models are served in one process only"
)

// A model is called by others as by clients, and counts alike.
func TestModelsCallOthers(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"last/config.pbtxt": calling("z x", ""), "last/1/.keep": "",
		"middle/config.pbtxt": calling("x z", calls("last")), "middle/1/.keep": "",
		"first/config.pbtxt": calling("x z", calls("middle")), "first/1/.keep": "",
		"several/config.pbtxt": calling("z x", givesSeveral), "several/1/.keep": "",
		"asks/config.pbtxt": calling("x z", calls("several")), "asks/1/.keep": "",
		"nobody/config.pbtxt": calling("x z", calls("nope")), "nobody/1/.keep": "",
		"itself/config.pbtxt": calling("x z", calls("itself")), "itself/1/.keep": "",
		"ping/config.pbtxt": calling("x z", calls("pong")), "ping/1/.keep": "",
		"pong/config.pbtxt": calling("x z", calls("ping")), "pong/1/.keep": "",
	}))
	for model, tt := range map[string]struct {
		status int
		want   string
	}{
		"last": {http.StatusOK, `"data":[2]`}, "middle": {http.StatusOK, `"data":[2]`}, "first": {http.StatusOK, `"data":[2]`},
		"asks":   {http.StatusOK, `"data":[2]`},
		"itself": {http.StatusServiceUnavailable, "every instance of model 'itself'"},
		"ping":   {http.StatusServiceUnavailable, "every instance of model 'ping'"},
		"nobody": {http.StatusNotFound, "Failed for execute the inference request. Model 'nope' is not ready."},
	} {
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", both)
		if clustered() && model != "last" {
			tt.status, tt.want = http.StatusNotImplemented, oneProcessCalls
		}
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %s, want %d with %s", model, status, text, tt.status, tt.want)
		}
	}
	if clustered() {
		return
	}
	s.wantMetrics(
		`nereid_gateway_requests_total{model="last",protocol="call",reason="ok"} 2`,
		`nereid_gateway_requests_total{model="last",protocol="http",reason="ok"} 1`,
		`nv_inference_request_success{model="last",version="1"} 3`,
		`nv_inference_request_success{model="middle",version="1"} 2`,
		`nv_inference_request_success{model="several",version="1"} 1`,
		inFlight(0),
	)
}
