package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func TestReadyFollowsTheModelsAndTheDrain(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	ready := request{method: "GET", path: "/v2/health/ready"}
	if got := s.do(ready).Status; got != 200 {
		t.Errorf("with a ready model: %d", got)
	}
	if err := s.gateway.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.do(ready).Status; got != 400 {
		t.Errorf("while draining: %d", got)
	}
	if got := s.do(request{method: "GET", path: "/v2/health/live"}).Status; got != 200 {
		t.Errorf("live while draining: %d", got)
	}
}

// A body would break scripts that compare all that curl prints with 200, so that only a client
// that asks for JSON gets one, or all do by a setting.
func TestProbesHaveABodyOnlyWhereItIsAskedFor(t *testing.T) {
	const live, ready, model = "/v2/health/live", "/v2/health/ready", "/v2/models/simple/versions/1/ready"
	unready := response{Status: 400, Header: map[string]string{"Content-Type": "application/json"}, Body: `{"ready":false}`}
	for _, c := range []struct {
		name, path, accept string
		always             bool
		models             []*core.Model
		want               response
	}{
		{name: "no Accept", path: live, want: probed(200)},
		{name: "what curl sends", path: live, accept: "*/*", want: probed(200)},
		{name: "any application type", path: ready, accept: "application/*, */*;q=0.8", want: probed(200)},
		{name: "another type of JSON", path: ready, accept: "application/json-patch+json", want: probed(200)},
		{name: "anything but JSON", path: model, accept: "*/*, application/json;q=0", want: probed(200)},
		{name: "JSON, live", path: live, accept: "application/json", want: success(`{"live":true}`)},
		{name: "JSON, ready", path: ready, accept: "text/plain, Application/JSON ; charset=utf-8;q=0.5", want: success(`{"ready":true}`)},
		{name: "JSON, a model", path: model, accept: "application/json,*/*", want: success(`{"name":"simple","ready":true}`)},
		{name: "JSON, not ready", path: ready, accept: "application/json", models: repository(), want: unready},
		{name: "always, live", path: live, always: true, want: success(`{"live":true}`)},
		{name: "always, not ready", path: ready, accept: "*/*", always: true, models: repository(), want: unready},
		{name: "always, a model", path: model, always: true, want: success(`{"name":"simple","ready":true}`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.models == nil {
				c.models = []*core.Model{simple(2)}
			}
			s := newServer(t, c.models, func(o *rest.Options) { o.HealthBody = c.always })
			q := request{method: http.MethodGet, path: c.path}
			if c.accept != "" {
				q.header = map[string]string{"Accept": c.accept}
			}
			if d := cmp.Diff(c.want, s.doLike(q, c.want)); d != "" {
				t.Error(d)
			}
		})
	}
}

// Without a repository the server says who it is and that it is not well.
func TestAServerWithoutARepositoryServesItsMetadataAlone(t *testing.T) {
	s := newServer(t, nil)
	s.gateway.Fail()
	unready := refusal(503, "Server not ready", "server_not_ready")
	for path, want := range map[string]response{
		"GET /v2":                           success(`{"name":"nereid","version":"0.1.0","extensions":["binary_tensor_data","parameters"]}`),
		"GET /v2/health/live":               probed(400),
		"GET /v2/health/ready":              probed(400),
		"GET /v2/models/m":                  unready,
		"GET /v2/models/m/ready":            unready,
		"GET /v2/models/m/config":           unready,
		"GET /v2/models/stats":              unready,
		"POST /v2/models/m/infer":           unready,
		"POST /v2/repository/index":         unready,
		"POST /v2/repository/models/m/load": unready,
	} {
		method, path, _ := strings.Cut(path, " ")
		if d := cmp.Diff(want, s.doLike(request{method: method, path: path, body: "{}"}, want)); d != "" {
			t.Errorf("%s %s: %s", method, path, d)
		}
	}
}
