package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// responding is a scheduler that responds to everything.
type responding struct{ table *requests.Table }

func (a responding) Cancel(infer.RequestID) {}
func (a responding) Submit(r *infer.Request) error {
	r.Release()
	a.table.Respond(&infer.Response{Work: r.Work, Final: true})
	return nil
}

func (a responding) Statistics(_ context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	return make([]infer.Statistics, len(refs)), nil
}

// newRecorded is a server with the models m and n that notes the stages that calls take.
func newRecorded(taken *[]string, o path.Options) *server {
	table := requests.New(1)
	gateway := core.New(core.ServerInfo{}, core.Deps{
		Dispatcher: responding{table}, Requests: table, Clock: mono.New(), Pool: tensor.NewPool(0),
		Statistics: func(string) core.StatisticsSource { return responding{table} },
	})
	config := &modelconfig.Config{Name: "m", Inputs: []modelconfig.IO{{Name: "X", Datatype: tensor.Uint8, Dims: tensor.Shape{1}}}}
	model := func(name string) *core.Model {
		return &core.Model{Name: name, Versions: []*core.Version{{Ref: infer.ModelRef{Name: name, Version: 1}, Config: config, State: infer.Ready}}}
	}
	gateway.Update(core.NewSnapshot(1, true, []*core.Model{model("m"), model("n")}))
	o.Stages = path.Stages()
	for i := range o.Stages {
		name, run := o.Stages[i].Name, o.Stages[i].Run
		o.Stages[i].Run = func(c *path.Call) error {
			*taken = append(*taken, name)
			return run(c)
		}
	}
	s, _ := New(gateway, Options{Options: o}).(*server)
	return s
}

// ask calls an endpoint as a client of the model m would.
func (s *server) ask(r *route) *httptest.ResponseRecorder {
	target := strings.NewReplacer("{model}", "m", "{version}", "1", "{repository}", "r", "{region}", "g").Replace(r.pattern)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(r.method, target, strings.NewReader(r.body())))
	return w
}

// body is one that the endpoint takes: an inference's has the input X.
func (r *route) body() string {
	switch {
	case r.infer == nil:
		return `{}`
	case strings.HasSuffix(r.pattern, "/infer"):
		return `{"inputs":[{"name":"X","datatype":"UINT8","shape":[1],"data":[1]}]}`
	}
	return `{"X":1}`
}

// Every inference takes all stages and every other call those of all calls, before
// any response.
func TestEveryRouteTakesItsStages(t *testing.T) {
	var all, every []string
	for _, s := range path.Stages() {
		if all = append(all, s.Name); s.Every {
			every = append(every, s.Name)
		}
	}
	var taken []string
	s := newRecorded(&taken, path.Options{})
	for _, r := range s.routes {
		taken = nil
		w := s.ask(&r)
		want := every
		if r.api == core.InferenceAPI {
			want = all
			if w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", r.pattern, w.Code, w.Body)
			}
		}
		if diff := cmp.Diff(want, taken); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", r.method, r.pattern, diff)
		}
	}
}

// Where every API is restricted no route responds without the header.
func TestEveryRouteIsRestricted(t *testing.T) {
	restricted := make(core.Restrictions)
	for _, api := range core.APIs() {
		restricted[api] = core.Secret{Header: "key", Value: "secret"}
	}
	var taken []string
	s := newRecorded(&taken, path.Options{Restricted: restricted})
	for _, r := range s.routes {
		if w := s.ask(&r); w.Code != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", r.method, r.pattern, w.Code, w.Body)
		}
	}
}

func TestPathsAreMatchedBeforeTheyAreDecoded(t *testing.T) {
	var taken []string
	s := newRecorded(&taken, path.Options{})
	for _, c := range []struct{ path, pattern, model, version string }{
		{"/v2/models/simple/infer", "/v2/models/{model}/infer", "simple", ""},
		{"/v2/models/simple/versions/1/infer", "/v2/models/{model}/versions/{version}/infer", "simple", "1"},
		{"/v2/models/my%20model/infer", "/v2/models/{model}/infer", "my model", ""},
		{"/v2/models/a%2Fb/infer", "/v2/models/{model}/infer", "a/b", ""},
		{"/v2/models/stats", "/v2/models/stats", "", ""},
		{"/v2/models/stats/ready", "/v2/models/{model}/ready", "stats", ""},
		{"/v2/models/versions/versions/2", "/v2/models/{model}/versions/{version}", "versions", "2"},
		{"/v2/models//infer", "", "", ""},
		{"/v2/models/infer", "/v2/models/{model}", "infer", ""},
		{"/v2/models/simple/infer/", "", "", ""},
		{"/v2/", "", "", ""},
		{"", "", "", ""},
		{"//v2", "", "", ""},
		{"/v2/nothing", "", "", ""},
	} {
		var p params
		pattern, model, version := "", "", ""
		if r := s.match("", c.path, &p); r != nil {
			pattern = r.pattern
			model, version, _ = p.target()
		}
		if pattern != c.pattern || model != c.model || version != c.version {
			t.Errorf("%s is %q with the model %q in version %q", c.path, pattern, model, version)
		}
	}
}

// A model's version is a number; any other text there is an unknown path.
func TestVersionsInPathsAreNumbers(t *testing.T) {
	var taken []string
	s := newRecorded(&taken, path.Options{})
	for _, version := range []string{"x", "-1", "1x", "%31"} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/models/m/versions/"+version, http.NoBody))
		if w.Code != http.StatusNotFound {
			t.Errorf("version %s: %d", version, w.Code)
		}
	}
}
