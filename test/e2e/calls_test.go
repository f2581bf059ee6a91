package e2e

import (
	"context"
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
	givesSeveral = "model_transaction_policy { decoupled: true }\nparameters [{ key: \"responses\" value: { string_value: \"2\" } }]\n"
	both         = `{"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1]},{"name":"z","datatype":"INT32","shape":[1],"data":[2]}]}`
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
		if status != tt.status || !strings.Contains(text, tt.want) {
			t.Errorf("%s: %d %s, want %d with %s", model, status, text, tt.status, tt.want)
		}
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

// A client that goes away takes the calls with it that were made for it.
func TestCallsEndWithTheirClients(t *testing.T) {
	const slow = "parameters [{ key: \"execute_us\" value: { string_value: \"3600000000\" } }]\n"
	s := start(t, repository(t, map[string]string{
		"slow/config.pbtxt": calling("x z", slow), "slow/1/.keep": "",
		"asks/config.pbtxt": calling("x z", calls("slow")), "asks/1/.keep": "",
	}))
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HTTP+"/v2/models/asks/infer", strings.NewReader(both))
		if err == nil {
			_, err = http.DefaultClient.Do(request)
		}
		ended <- err
	}()
	s.inFlight(2)
	leave()
	if err := <-ended; err == nil {
		t.Error("the request was answered")
	}
	s.wantMetrics(inFlight(0),
		`nv_inference_request_failure{model="slow",reason="CANCELED",version="1"} 1`,
		`nv_inference_request_failure{model="asks",reason="CANCELED",version="1"} 1`)
}
