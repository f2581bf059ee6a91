package process

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/obs"
)

// The port for operators asks nobody who calls: it serves what is listed here, reads alone, and
// nothing more. An endpoint that is not listed fails.
func TestTheOperatorsPortServesReadsAlone(t *testing.T) {
	open := map[string]int{"GET /metrics": http.StatusOK, "GET /v2/health/live": http.StatusOK, "GET /v2/health/ready": http.StatusServiceUnavailable}
	metrics, health := obs.NewMetrics("test", nil), &Health{Ready: func() error { return errors.New("it starts") }}
	for name, c := range map[string]struct {
		health *Health
		served int
	}{"with health": {health, 3}, "without": {nil, 1}} {
		t.Run(name, func(t *testing.T) {
			h, all := handler(metrics, c.health), endpoints(metrics, c.health)
			if len(all) != c.served {
				t.Errorf("%d endpoints are served, want %d", len(all), c.served)
			}
			call := func(method, path string) int {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
				return w.Code
			}
			for pattern := range all {
				want, listed := open[pattern]
				if !listed {
					t.Errorf("%s is not in the table of what everybody may call", pattern)
					continue
				}
				method, path, _ := strings.Cut(pattern, " ")
				if got := call(method, path); got != want {
					t.Errorf("%s: %d, want %d", pattern, got, want)
				}
				for _, changes := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
					if got := call(changes, path); got != http.StatusMethodNotAllowed {
						t.Errorf("%s %s: %d", changes, path, got)
					}
				}
			}
			for _, path := range []string{
				"/", "/metrics/", "/debug/pprof/", "/debug/pprof/heap", "/debug/vars", "/drain", "/quit", "/v2", "/v2/models/stats", "/v2/repository/index",
				"/v2/logging", "/v2/trace/setting", "/nereid/requests/1-1", "/nereid/status", "/v2/health",
			} {
				for _, method := range []string{http.MethodGet, http.MethodPost} {
					if got := call(method, path); got != http.StatusNotFound {
						t.Errorf("%s %s: %d, want 404", method, path, got)
					}
				}
			}
		})
	}
}
