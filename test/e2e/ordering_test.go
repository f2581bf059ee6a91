package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// ordered takes 100 ms for each row of a batch, so that a request of one row
// is done before an earlier one of eight that runs beside it.
const ordered = `
backend: "echo"
max_batch_size: 8
dynamic_batching { preserve_ordering: true }
input [{ name: "x" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ count: 2 kind: KIND_CPU }]
parameters [{ key: "execute_us_per_row" value: { string_value: "100000" } }]
`

func TestOrderIsPreservedOverInstances(t *testing.T) {
	s := start(t, repository(t, map[string]string{"ordered/config.pbtxt": ordered, "ordered/1/.keep": ""}))
	const eight = `{"inputs":[{"name":"x","datatype":"INT32","shape":[8,1],"data":[1,2,3,4,5,6,7,8]}]}`
	first := make(chan int)
	go func() {
		status, _ := s.do(http.MethodPost, s.HTTP+"/v2/models/ordered/infer", eight)
		first <- status
	}()
	s.inFlight(1)
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/ordered/infer", one); status != http.StatusOK {
		t.Errorf("the second: %d %s", status, text)
	}
	if _, text := s.do(http.MethodGet, s.Metrics+"/metrics", ""); !strings.Contains(text, "nereid_gateway_in_flight_requests 0") {
		t.Error("the second request was answered before the first")
	}
	if status := <-first; status != http.StatusOK {
		t.Errorf("the first: %d", status)
	}
}
