package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tally is a count with a time, as in the statistics of a model.
type tally struct{ Count, NS uint64 }

// phases are those of a model's executions.
type phases struct {
	Input  tally `json:"compute_input"`
	Infer  tally `json:"compute_infer"`
	Output tally `json:"compute_output"`
}

// modelStatistics are the statistics of one version of a model.
type modelStatistics struct {
	Inferences uint64 `json:"inference_count"`
	Executions uint64 `json:"execution_count"`
	Inference  struct {
		phases
		Success, Fail tally
	} `json:"inference_stats"`
	Batches []struct {
		phases
		Size uint64 `json:"batch_size"`
	} `json:"batch_stats"`
}

// statistics returns those of a model, when it has so many successes and failures: they are
// counted after the responses.
func (s *server) statistics(t *testing.T, model string, success, failed uint64) (of modelStatistics) {
	t.Helper()
	s.eventually(fmt.Sprintf("%d successes and %d failures of %s", success, failed, model), func() bool {
		_, text := s.do(http.MethodGet, s.HTTP+"/v2/models/"+model+"/stats", "")
		var all struct {
			Models []modelStatistics `json:"model_stats"`
		}
		if err := json.Unmarshal([]byte(text), &all); err != nil || len(all.Models) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		of = all.Models[0]
		return of.Inference.Success.Count == success && of.Inference.Fail.Count == failed
	})
	return of
}

// The phases of an ensemble are the sums of its steps', those that are ensembles too, for
// each batch size of its requests. Requests that failed have none.
func TestEnsemblesCountByBatchSize(t *testing.T) {
	wide := strings.NewReplacer("max_batch_size: 1", "max_batch_size: 4")
	model := wide.Replace(echo(100))
	s := start(t, repository(t, map[string]string{
		"one/config.pbtxt": model, "one/1/.keep": "", "two/config.pbtxt": model, "two/1/.keep": "",
		"chain/config.pbtxt": wide.Replace(ensembleOf("x", "y", step("one", "x=x", "y=middle"), step("two", "x=middle", "y=y"))), "chain/1/.keep": "",
		"outer/config.pbtxt": wide.Replace(ensembleOf("x", "y", step("chain", "x=x", "y=y"))), "outer/1/.keep": "",
	}))
	for _, rows := range []string{"[1,1],\"data\":[7]", "[2,1],\"data\":[7,8]", "[2,1],\"data\":[7,8]"} {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/outer/infer", `{"inputs":[{"name":"x","datatype":"INT32","shape":`+rows+`}]}`); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	one, two := s.statistics(t, "one", 3, 0), s.statistics(t, "two", 3, 0)
	for _, name := range []string{"chain", "outer"} {
		got := s.statistics(t, name, 3, 0)
		if got.Inferences != 5 || got.Executions != 3 {
			t.Errorf("%s has %d inferences and %d executions", name, got.Inferences, got.Executions)
		}
		infer := tally{3, one.Inference.Infer.NS + two.Inference.Infer.NS}
		if diff := cmp.Diff(infer, got.Inference.Infer); diff != "" {
			t.Errorf("the time in the steps' models and in %s (-want +got):\n%s", name, diff)
		}
		var sum phases
		counts := make(map[uint64]uint64)
		for _, b := range got.Batches {
			for to, from := range map[*tally]tally{&sum.Input: b.Input, &sum.Infer: b.Infer, &sum.Output: b.Output} {
				to.Count += from.Count
				to.NS += from.NS
			}
			counts[b.Size] = b.Infer.Count
		}
		if diff := cmp.Diff(got.Inference.phases, sum); diff != "" {
			t.Errorf("all requests for %s and the sum of its batch sizes (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(map[uint64]uint64{1: 1, 2: 2}, counts); diff != "" {
			t.Errorf("batch sizes of %s (-want +got):\n%s", name, diff)
		}
	}
}

// A request that the queue of a step refuses counts as rejected with the step, and as failed
// with all ensembles that it belongs to.
func TestRejectedStepsCountWithTheirEnsembles(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"slow/config.pbtxt": echo(300_000) + "dynamic_batching { default_queue_policy { max_queue_size: 1 } }", "slow/1/.keep": "",
		"inner/config.pbtxt": ensembleOf("x", "y", step("slow", "x=x", "y=y")), "inner/1/.keep": "",
		"outer/config.pbtxt": ensembleOf("x", "y", step("inner", "x=x", "y=y")), "outer/1/.keep": "",
	}))
	const requests = 8
	var mu sync.Mutex
	var wait sync.WaitGroup
	rejected := 0
	for range requests {
		wait.Go(func() {
			status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/outer/infer", one)
			if status == http.StatusOK {
				return
			}
			if status != http.StatusServiceUnavailable || text != `{"error":"in ensemble 'outer', in ensemble 'inner', [request id: <id_unknown>] Exceeds maximum queue size"}` {
				t.Errorf("%d %s", status, text)
			}
			mu.Lock()
			defer mu.Unlock()
			rejected++
		})
	}
	wait.Wait()
	if rejected == 0 {
		t.Fatal("no request was rejected")
	}
	for _, line := range []string{
		`nv_inference_request_failure{model="slow",reason="REJECTED",version="1"}`, `nv_inference_request_failure{model="inner",reason="OTHER",version="1"}`,
		`nv_inference_request_failure{model="outer",reason="OTHER",version="1"}`,
	} {
		s.wantMetric(fmt.Sprint(line, " ", rejected))
	}
	for _, model := range []string{"slow", "inner", "outer"} {
		s.statistics(t, model, uint64(requests-rejected), uint64(rejected))
	}
}
