package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestEqualRequestsAreAnsweredFromTheCache counts what a model executes and what the
// cache gives, before and after its content has changed.
func TestEqualRequestsAreAnsweredFromTheCache(t *testing.T) {
	config := echo(0) + "response_cache { enable: true }\n"
	dir := repository(t, map[string]string{"m/config.pbtxt": config, "m/1/.keep": "", "plain/config.pbtxt": echo(0), "plain/1/.keep": ""})
	s := start(t, dir, "--cache-config=local,size=1048576", "--model-control-mode=explicit", "--load-model=*")
	ask := func(model string, value int) {
		t.Helper()
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", strings.Replace(one, "7", fmt.Sprint(value), 1))
		if status != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"data":[%d]`, value)) {
			t.Errorf("%s of %d: %d %s", model, value, status, text)
		}
	}
	wants := func(model string, success, hits, misses, executions int) {
		t.Helper()
		want := fmt.Sprintf("%d successes, %d hits, %d misses, %d executions", success, hits, misses, executions)
		s.eventually(model+" has "+want, func() bool {
			_, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model+"/stats", "")
			var stats struct {
				Models []struct {
					Executions int `json:"execution_count"`
					Inference  map[string]struct {
						Count int `json:"count"`
					} `json:"inference_stats"`
				} `json:"model_stats"`
			}
			if err := json.Unmarshal([]byte(text), &stats); err != nil || len(stats.Models) != 1 {
				return false
			}
			m := stats.Models[0]
			return fmt.Sprintf("%d successes, %d hits, %d misses, %d executions", m.Inference["success"].Count, m.Inference["cache_hit"].Count,
				m.Inference["cache_miss"].Count, m.Executions) == want
		})
	}
	for range 3 {
		ask("m", 1)
		ask("plain", 1)
	}
	ask("m", 2)
	wants("m", 4, 2, 2, 2)
	wants("plain", 3, 0, 0, 3)

	write(t, filepath.Join(dir, "m/1/weights"), "others")
	s.control(t, "load", "m", "", http.StatusOK, "")
	ask("m", 1)
	ask("m", 1)
	wants("m", 6, 3, 3, 3)
}
