package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nereid-serving/nereid/test/ports"
)

// A cached ensemble is answered as a whole until a model of its steps has changed.
func TestEnsemblesAreAnsweredFromTheCache(t *testing.T) {
	dir := repository(t, map[string]string{
		"m/config.pbtxt": echo(0), "m/1/.keep": "",
		"whole/config.pbtxt": ensembleOf("x", "y", step("m", "x=x", "y=y")) + "response_cache { enable: true }\n", "whole/1/.keep": "",
	})
	s := start(t, dir, "--cache-config=local,size=1048576", "--model-control-mode=explicit", "--load-model=whole")
	for range 3 {
		s.infer(t, "whole", http.StatusOK)
	}
	s.wantMetrics(`nv_inference_exec_count{model="m",version="1"} 1`, `nv_inference_request_success{model="whole",version="1"} 3`, `nv_cache_num_hits_per_model{model="whole",version="1"} 2`)
	write(t, filepath.Join(dir, "m/1/weights"), "others")
	s.control(t, "load", "m", "", http.StatusOK, "")
	for range 3 {
		s.infer(t, "whole", http.StatusOK)
	}
	s.wantMetrics(`nv_cache_num_hits_per_model{model="whole",version="1"} 4`, `nv_cache_num_misses_per_model{model="whole",version="1"} 2`)
}

// A step whose model enables the cache is answered from it, also where the ensemble and the
// step before it are not.
func TestStepsAreAnsweredFromTheCache(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"plain/config.pbtxt": echo(0), "plain/1/.keep": "",
		"m/config.pbtxt": echo(0) + "response_cache { enable: true }\n", "m/1/.keep": "",
		"e/config.pbtxt": ensembleOf("x", "z", step("plain", "x=x", "y=y"), step("m", "x=y", "y=z")), "e/1/.keep": "",
		"inner/config.pbtxt": ensembleOf("x", "y", step("plain", "x=x", "y=y")) + "response_cache { enable: true }\n", "inner/1/.keep": "",
		"outer/config.pbtxt": ensembleOf("x", "y", step("inner", "x=x", "y=y")), "outer/1/.keep": "",
	}), "--cache-config=local,size=1048576")
	for range 3 {
		s.infer(t, "e", http.StatusOK)
	}
	s.wantMetrics(
		`nv_inference_exec_count{model="plain",version="1"} 3`, `nv_inference_exec_count{model="m",version="1"} 1`,
		`nv_cache_num_hits_per_model{model="m",version="1"} 2`, `nv_cache_num_misses_per_model{model="m",version="1"} 1`,
		`nv_inference_request_success{model="e",version="1"} 3`, `nv_inference_request_success{model="m",version="1"} 3`,
	)
	for range 3 { // a step that is an ensemble, too
		s.infer(t, "outer", http.StatusOK)
	}
	s.wantMetrics(
		`nv_inference_exec_count{model="plain",version="1"} 4`, `nv_inference_request_success{model="outer",version="1"} 3`,
		`nv_cache_num_hits_per_model{model="inner",version="1"} 2`, `nv_inference_request_success{model="inner",version="1"} 3`,
	)
}

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
	for range 3 {
		ask("m", 1)
		ask("plain", 1)
	}
	ask("m", 2)
	s.eventuallyCounts("m", modelCounts{4, 2, 2, 2})
	s.eventuallyCounts("plain", modelCounts{3, 0, 0, 3})

	write(t, filepath.Join(dir, "m/1/weights"), "others")
	s.control(t, "load", "m", "", http.StatusOK, "")
	ask("m", 1)
	ask("m", 1)
	s.eventuallyCounts("m", modelCounts{6, 3, 3, 3})
}

// TestEqualRequestsInFlightShareAnExecution sends equal requests at once, and others, of
// which each has its own response.
func TestEqualRequestsInFlightShareAnExecution(t *testing.T) {
	config := echo(50_000) + `parameters { key: "requests.share_in_flight" value { string_value: "true" } }` + "\n"
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": config, "m/1/.keep": ""}))
	requests := 0
	s.eventually("requests share an execution", func() bool {
		var asking sync.WaitGroup
		for i := range 12 {
			value := 10 + i%3
			asking.Go(func() {
				status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/m/infer", strings.Replace(one, "7", fmt.Sprint(value), 1))
				if status != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"data":[%d]`, value)) {
					t.Errorf("%d: %d %s", value, status, text)
				}
			})
		}
		asking.Wait()
		requests += 12
		return s.counts("m").hits > 0
	})
	s.eventually("all are counted, and the hits have no execution", func() bool {
		c := s.counts("m")
		return c.success == requests && c.hits+c.misses == requests && c.misses == c.executions
	})
}

// TestResponsesAreSharedByRedis has two servers of the same models by one Redis, which
// is then stopped, killed and started again: requests are answered all the while.
func TestResponsesAreSharedByRedis(t *testing.T) {
	program := os.Getenv("NEREID_REDIS")
	if program == "" {
		t.Skip("NEREID_REDIS names no redis-server: make redis-test does")
	}
	const password = "no-secret-at-all"
	t.Setenv("TRITONCACHE_REDIS_PASSWORD", password)
	var free ports.Picker // it cannot say which one the system gave it
	port := strconv.Itoa(free.Free(t))
	startRedis := func() *exec.Cmd {
		command := exec.Command(program, "--bind", "127.0.0.1", "--port", port, "--requirepass", password, "--save", "", "--dir", t.TempDir())
		background(t, command)
		return command
	}
	redis := startRedis()
	dir := repository(t, map[string]string{"m/config.pbtxt": echo(0) + "response_cache { enable: true }\n", "m/1/.keep": ""})
	flag := "--cache-config=redis,host=127.0.0.1,socket_timeout=2000,connect_timeout=2000,port=" + port
	first, other := start(t, dir, flag), start(t, dir, flag)
	ask := func(s *server, value int) {
		t.Helper()
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/m/infer", strings.Replace(one, "7", fmt.Sprint(value), 1))
		if status != http.StatusOK || !strings.Contains(text, fmt.Sprintf(`"data":[%d]`, value)) {
			t.Errorf("%d: %d %s", value, status, text)
		}
	}
	shared := func(value int) {
		t.Helper()
		before := other.counts("m").hits
		other.eventually("a response of one server is a hit of the other", func() bool {
			value++
			for range 5 {
				ask(first, value)
				ask(other, value)
			}
			return other.counts("m").hits > before
		})
	}
	shared(100)
	if err := redis.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for value := range 5 {
		ask(first, value)
	}
	if err := redis.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := redis.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for value := range 5 {
		ask(other, value)
	}
	startRedis()
	shared(1000)
}

// modelCounts are counts of a model's statistics.
type modelCounts struct{ success, hits, misses, executions int }

// counts returns those of a model; zeros where its statistics are not there.
func (s *server) counts(model string) modelCounts {
	s.t.Helper()
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
		return modelCounts{}
	}
	m := stats.Models[0]
	return modelCounts{m.Inference["success"].Count, m.Inference["cache_hit"].Count, m.Inference["cache_miss"].Count, m.Executions}
}

// eventuallyCounts waits for the counts of a model.
func (s *server) eventuallyCounts(model string, want modelCounts) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%s has %+v", model, want), func() bool { return s.counts(model) == want })
}
