package rest

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// direct answers the usual inference path without the router, which copies
// the request and allocates for it: about a tenth of a small request's
// memory. Whatever is not plainly that path goes to the router.
func (s *server) direct(router http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		model, ok := plainInfer(r)
		if !ok {
			router.ServeHTTP(w, r)
			return
		}
		err := s.allow(r, core.InferenceAPI)
		if err == nil {
			err = s.inferModel(w, r, model, "")
		}
		if err != nil {
			s.fail(w, err, "")
		}
	})
}

// plainInfer returns the model of POST /v2/models/MODEL/infer, if the name
// needs no decoding.
func plainInfer(r *http.Request) (model string, ok bool) {
	const prefix, suffix = "/v2/models/", "/infer"
	path := r.URL.Path
	if r.Method != http.MethodPost || r.URL.RawPath != "" || !strings.HasPrefix(path, prefix) || !strings.HasSuffix(path, suffix) {
		return "", false
	}
	if len(path) <= len(prefix)+len(suffix) {
		return "", false
	}
	model = path[len(prefix) : len(path)-len(suffix)]
	return model, url.PathEscape(model) == model
}
