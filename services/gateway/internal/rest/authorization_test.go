package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// access is who may call an endpoint, and what a tenant learns from it.
type access int

const (
	open   access = iota // everybody, without a key
	tenant               // every tenant that has the API; no model shows
	model                // tenants that may use the model in the path
	list                 // every tenant that has the API; it sees its own models alone
	own                  // every tenant that has the API; it sees its own requests alone
)

// accesses has every endpoint.
var accesses = map[string]access{
	"POST /v2/models/{model}/infer":                              model,
	"POST /v2/models/{model}/versions/{version}/infer":           model,
	"POST /v2/models/{model}/generate":                           model,
	"POST /v2/models/{model}/versions/{version}/generate":        model,
	"POST /v2/models/{model}/generate_stream":                    model,
	"POST /v2/models/{model}/versions/{version}/generate_stream": model,
	"GET /v2":                                                tenant,
	"GET /v2/health/live":                                    open,
	"GET /v2/health/ready":                                   open,
	"GET /v2/models/stats":                                   list,
	"GET /v2/models/{model}":                                 model,
	"GET /v2/models/{model}/versions/{version}":              model,
	"GET /v2/models/{model}/ready":                           open,
	"GET /v2/models/{model}/versions/{version}/ready":        open,
	"GET /v2/models/{model}/config":                          model,
	"GET /v2/models/{model}/versions/{version}/config":       model,
	"GET /v2/models/{model}/stats":                           model,
	"GET /v2/models/{model}/versions/{version}/stats":        model,
	"GET /nereid/requests/{request}":                         own,
	"POST /nereid/recordings":                                tenant, // what it shows is tested in package record
	"GET /v2/logging":                                        tenant,
	"POST /v2/logging":                                       tenant,
	"POST /v2/repository/index":                              list,
	"POST /v2/repository/{repository}/index":                 list,
	"POST /v2/repository/models/{model}/load":                model,
	"POST /v2/repository/{repository}/models/{model}/load":   model,
	"POST /v2/repository/models/{model}/unload":              model,
	"POST /v2/repository/{repository}/models/{model}/unload": model,
	"GET /v2/systemsharedmemory/status":                      tenant,
	"GET /v2/systemsharedmemory/region/{region}/status":      tenant,
	"POST /v2/systemsharedmemory/region/{region}/register":   tenant,
	"POST /v2/systemsharedmemory/region/{region}/unregister": tenant,
	"POST /v2/systemsharedmemory/register":                   tenant,
	"POST /v2/systemsharedmemory/unregister":                 tenant,
	"GET /v2/cudasharedmemory/status":                        tenant,
	"GET /v2/cudasharedmemory/region/{region}/status":        tenant,
	"POST /v2/cudasharedmemory/region/{region}/register":     tenant,
	"POST /v2/cudasharedmemory/region/{region}/unregister":   tenant,
	"POST /v2/cudasharedmemory/register":                     tenant,
	"POST /v2/cudasharedmemory/unregister":                   tenant,
}

// rights is a policy of tenants that may use the model m, others, or everything, and of one
// that may infer alone.
func rights(t *testing.T) *tenants.Tenants {
	t.Helper()
	every := "apis: [inference, metadata, model-config, model-repository, statistics, shared-memory, trace, logging, explain, recording]"
	text := "version: 1\ntenants:\n"
	for name, may := range map[string]string{"mine": "models: [m], " + every, "other": "models: [n], " + every, "all": every, "plain": "models: [m], apis: [inference]"} {
		text += "  " + name + ": {" + may + ", keys: [{sha256: " + policy.Key(name) + "}]}\n"
	}
	p, findings := policy.Read([]byte(text))
	if p == nil {
		t.Fatal(findings)
	}
	all := tenants.New(unmetered{}, time.Now)
	all.Set(p, nil)
	return all
}

type unmetered struct{}

func (unmetered) Shadowed(string, errs.Reason) {}
func (unmetered) Retried(string, bool)         {}

// Every endpoint refuses callers without a key, with a wrong one, of another tenant and
// without a right to its API, and shows a tenant its own models. An endpoint that is not
// in the table fails.
func TestEveryEndpointIsAuthorized(t *testing.T) {
	var taken []string
	s := newRecorded(&taken, path.Options{Tenants: rights(t), Regions: regions.New(regions.Options{Directory: t.TempDir()})})
	s.options.Explain = func(_ context.Context, q infer.ExplainQuestion) (*infer.Explanation, error) {
		return &infer.Explanation{Tenant: q.Tenant, Cached: q.Every}, nil
	}
	ask := func(r *route, key string) *httptest.ResponseRecorder {
		target := strings.NewReplacer("{model}", "m", "{version}", "1", "{repository}", "r", "{region}", "g", "{request}", "1-1").Replace(r.pattern)
		q := httptest.NewRequest(r.method, target, strings.NewReader(r.body()))
		if key != "" {
			q.Header.Set("X-API-Key", key)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, q)
		return w
	}
	for _, r := range s.routes {
		name := r.method + " " + r.pattern
		who, listed := accesses[name]
		if !listed {
			t.Errorf("%s is not in the table of who may call it", name)
			continue
		}
		want := map[string]int{"": 0, "wrong": 0, "other": 0, "mine": 0, "all": 0, "plain": 0} // 0: not refused
		if who != open {
			want[""], want["wrong"] = http.StatusUnauthorized, http.StatusUnauthorized
			if r.api != core.InferenceAPI {
				want["plain"] = http.StatusForbidden
			}
		}
		if who == model {
			want["other"] = http.StatusForbidden
		}
		for key, status := range want {
			w := ask(&r, key)
			refused := w.Code == http.StatusUnauthorized || w.Code == http.StatusForbidden
			if refused != (status != 0) || refused && w.Code != status {
				t.Errorf("%s with the key %q: %d %s, want %d", name, key, w.Code, w.Body, status)
			}
			if w.Code != http.StatusOK {
				continue
			}
			switch body := w.Body.String(); who {
			case tenant:
				for _, name := range []string{`"m"`, `"n"`} {
					if strings.Contains(body, name) {
						t.Errorf("%s with the key %q shows the model %s: %s", r.pattern, key, name, body)
					}
				}
			case list:
				for shown, of := range map[string][]string{`"name":"m"`: {"mine", "all"}, `"name":"n"`: {"other", "all"}} {
					if may := of[0] == key || of[1] == key; strings.Contains(body, shown) != may {
						t.Errorf("%s with the key %q shows %s", name, key, body)
					}
				}
			case own:
				if !strings.Contains(body, `"tenant":"`+key+`"`) || strings.Contains(body, `"cached":true`) {
					t.Errorf("%s with the key %q asks for the requests of others: %s", name, key, body)
				}
			}
		}
	}
}

// Unloading what depends on a model may concern models of others.
func TestUnloadingDependentsNeedsAllModels(t *testing.T) {
	var taken []string
	s := newRecorded(&taken, path.Options{Tenants: rights(t)})
	for key, refused := range map[string]bool{"mine": true, "all": false} {
		q := httptest.NewRequest(http.MethodPost, "/v2/repository/models/m/unload", strings.NewReader(`{"parameters":{"unload_dependents":true}}`))
		q.Header.Set("X-API-Key", key)
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, q); (w.Code == http.StatusForbidden) != refused {
			t.Errorf("%s: %d %s", key, w.Code, w.Body)
		}
	}
}
