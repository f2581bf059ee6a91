package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func TestRestrictedAPIsNeedTheirHeader(t *testing.T) {
	const get, post = http.MethodGet, http.MethodPost
	for _, c := range []struct {
		method, path string
		api          core.API
	}{
		{get, "/v2", core.MetadataAPI},
		{get, "/v2/health/live", core.HealthAPI},
		{get, "/v2/health/ready", core.HealthAPI},
		{get, "/v2/models/simple/ready", core.HealthAPI},
		{get, "/v2/models/simple", core.MetadataAPI},
		{get, "/v2/models/simple/config", core.ModelConfigAPI},
		{get, "/v2/models/stats", core.StatisticsAPI},
		{get, "/v2/models/simple/versions/1/stats", core.StatisticsAPI},
		{get, "/v2/systemsharedmemory/status", core.SharedMemoryAPI},
		{post, "/v2/models/simple/infer", core.InferenceAPI},
		{post, "/v2/models/simple/versions/1/infer", core.InferenceAPI},
		{post, "/v2/repository/index", core.RepositoryAPI},
		{post, "/v2/repository/models/simple/load", core.RepositoryAPI},
		{post, "/v2/repository/models/simple/unload", core.RepositoryAPI},
	} {
		for _, restricted := range core.APIs() {
			s := newServer(t, []*core.Model{simple(2)}, func(o *rest.Options) {
				o.Restricted = core.Restrictions{restricted: {Header: "Admin", Value: "secret"}}
			})
			for _, value := range []string{"", "other", "secret"} {
				got := s.do(request{method: c.method, path: c.path, header: map[string]string{"admin": value}, body: "{}"})
				want := c.api == restricted && value != "secret"
				refused := got.Status == http.StatusForbidden && strings.Contains(got.Body, `"error":"This API is restricted, expecting header 'Admin'"`)
				if refused != want {
					t.Errorf("%s %s with %q, %s restricted: %v", c.method, c.path, value, restricted, got)
				}
			}
		}
	}
}
