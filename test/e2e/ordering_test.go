package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// ordered takes 100 ms for each row of a batch, so that a request of one row
// is done long before an earlier one that fills a batch and runs beside it for
// minutes.
const ordered = `
backend: "echo"
max_batch_size: 4000
dynamic_batching { preserve_ordering: true }
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 2 kind: KIND_CPU }]
parameters [{ key: "execute_us_per_row" value: { string_value: "100000" } }]
`

func TestOrderIsPreservedOverInstances(t *testing.T) {
	s := start(t, repository(t, map[string]string{"ordered/config.pbtxt": ordered, "ordered/1/.keep": ""}))
	ctx, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan int, 1)
	full := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"INT32","shape":[4000,1],"data":[0%s]}]}`, strings.Repeat(",0", 3999))
	go func() { first <- s.post(ctx, "ordered", full) }()
	s.inFlight(1)
	go func() {
		status, _ := s.do(http.MethodPost, s.HTTP+"/v2/models/ordered/infer", one)
		second <- status
	}()
	// The second has run: its answer was given before that is counted, and is
	// kept for its turn.
	s.wantMetrics(`nv_inference_request_success{model="ordered",version="1"} 1`)
	s.inFlight(2)
	leave()
	if err := <-first; err == nil {
		t.Error("the first request was answered, and takes minutes")
	}
	if status := <-second; status != http.StatusOK {
		t.Errorf("the second: %d", status)
	}
}
