package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// iterating runs each request so often, in batches of up to four.
func iterating(iterations int, more string) string {
	return fmt.Sprintf(`
backend: "echo"
max_batch_size: 4
input [{ name: "x" data_type: TYPE_INT32 dims: [-1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [-1] }]
instance_group { kind: KIND_CPU }
sequence_batching { iterative_sequence: true }
parameters [{ key: "iterations" value: { string_value: "%d" } }]
%s`, iterations, more)
}

const decoupled = `model_transaction_policy { decoupled: true }`

// Inputs of both kinds, carried with the request and named, are those of each
// iteration; and each iteration counts, as in Triton.
func TestRequestsRunAgain(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"four/config.pbtxt": iterating(4, ""), "four/1/.keep": "",
	}))
	const clients, rounds = 6, 4
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := range rounds {
				value := fmt.Sprint(100*i + n)
				size := []int{2, 10_000}[n%2]
				data := strings.TrimSuffix(strings.Repeat(value+",", size), ",")
				body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1,%d],"data":[%s]}]}`, size, data)
				if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/four/infer", body); status != http.StatusOK || !strings.Contains(text, `"data":[`+data+`]`) {
					t.Errorf("%d %.200s", status, text)
				}
			}
		})
	}
	all.Wait()
	// One that names its sequence goes on with it, and ends it in its last iteration.
	for _, parameters := range []string{`"sequence_start":true`, `"sequence_end":true`} {
		body := `{"parameters":{"sequence_id":7,` + parameters + `},"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[5]}]}`
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/four/infer", body); status != http.StatusOK {
			t.Errorf("%s: %d %s", parameters, status, text)
		}
	}
	_, text := s.do(http.MethodGet, s.HTTP+"/v2/models/four/stats", "")
	var got struct {
		Models []struct {
			Inferences uint64                            `json:"inference_count"`
			Executions uint64                            `json:"execution_count"`
			Of         map[string]struct{ Count uint64 } `json:"inference_stats"`
		} `json:"model_stats"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Models) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	m := got.Models[0]
	if want := uint64(4 * (clients*rounds + 2)); m.Inferences != want || m.Of["success"].Count != want || m.Of["queue"].Count != want || m.Executions < 8 || m.Executions > want {
		t.Errorf("%d iterations are counted as %s", want, text)
	}
	s.inFlight(0)
}

// A decoupled model responds in each iteration, and a request that is canceled runs
// no more: its slot is the next one's.
func TestIterationsOfDecoupledModelsRespond(t *testing.T) {
	// An iteration of echo waits for no client: slow ones leave little unread.
	const slow = `parameters [{ key: "execute_us" value: { string_value: "20000" } }]`
	s := start(t, repository(t, map[string]string{
		"three/config.pbtxt": iterating(3, decoupled), "three/1/.keep": "",
		"endless/config.pbtxt": strings.Replace(iterating(1<<20, decoupled+"\n"+slow), "max_batch_size: 4", "max_batch_size: 1", 1), "endless/1/.keep": "",
	}))
	request := func(model string, n int) *inference.ModelInferRequest {
		return &inference.ModelInferRequest{
			ModelName: model, Id: fmt.Sprint(n),
			Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
			RawInputContents: [][]byte{{byte(n), 0, 0, 0}},
		}
	}
	stream := s.openStream(t)
	const requests = 20
	for n := range requests {
		if err := stream.Send(request("three", n)); err != nil {
			t.Fatal(err)
		}
	}
	given := make(map[string]int)
	for range 3 * requests {
		item, err := stream.Recv()
		if err != nil || item.GetErrorMessage() != "" {
			t.Fatalf("%v, %v", item, err)
		}
		r := item.GetInferResponse()
		given[r.GetId()]++
		if final := r.GetParameters()["triton_final_response"].GetBoolParam(); final != (given[r.GetId()] == 3) || len(r.GetRawOutputContents()) != 1 {
			t.Errorf("response %d is %v", given[r.GetId()], r)
		}
	}
	if len(given) != requests {
		t.Errorf("responses to %d requests", len(given))
	}
	for range 3 { // each has the one slot of the model
		ctx, cancel := context.WithCancel(t.Context())
		stream := s.openStreamUntil(ctx, t)
		if err := stream.Send(request("endless", 1)); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if item, err := stream.Recv(); err != nil || item.GetErrorMessage() != "" {
				t.Fatalf("%v, %v", item, err)
			}
		}
		cancel()
	}
	s.inFlight(0)
}
