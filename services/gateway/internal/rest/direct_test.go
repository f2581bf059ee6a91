package rest

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// What is not plainly an inference is the router's, which knows escapes and
// borders of names.
func TestPlainInferencesAreTold(t *testing.T) {
	for _, c := range []struct{ name, method, path, model string }{
		{"an inference", "POST", "/v2/models/simple/infer", "simple"},
		{"another method", "GET", "/v2/models/simple/infer", ""},
		{"another endpoint", "POST", "/v2/models/simple/ready", ""},
		{"no model", "POST", "/v2/models//infer", ""},
		{"the borders overlap", "POST", "/v2/models/infer", ""},
		{"a version", "POST", "/v2/models/simple/versions/1/infer", ""},
		{"an escaped letter", "POST", "/v2/models/s%69mple/infer", ""},
		{"an escaped blank", "POST", "/v2/models/my%20model/infer", ""},
		{"an escaped slash", "POST", "/v2/models/a%2Fb/infer", ""},
		{"a trailing slash", "POST", "/v2/models/simple/infer/", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			model, ok := plainInfer(httptest.NewRequest(c.method, c.path, http.NoBody))
			if !ok {
				model = ""
			}
			if model != c.model {
				t.Errorf("told as an inference with %q, want %q", model, c.model)
			}
		})
	}
}
