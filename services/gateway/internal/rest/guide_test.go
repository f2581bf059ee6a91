package rest

import (
	"slices"
	"testing"

	"github.com/nereid-serving/nereid/libs/testkit/guide"
)

// The guide for those who come from Triton has every endpoint, and none that there is not.
func TestTheGuideHasEveryEndpoint(t *testing.T) {
	rows := guide.Rows(t, "../../../../docs/guides/from-triton.md", "Endpoints over HTTP")
	var endpoints []string
	for _, r := range new(server).table() {
		endpoints = append(endpoints, r.method+" "+r.pattern)
		if !slices.ContainsFunc(rows, func(row guide.Row) bool { return row.Name == r.method+" "+r.pattern }) {
			t.Errorf("the guide lacks %s %s", r.method, r.pattern)
		}
	}
	for _, row := range rows {
		routed := slices.Contains(endpoints, row.Name)
		if row.Name != "GET /metrics" && routed != (row.State != "absent") {
			t.Errorf("the guide says that %s is %s; there is such an endpoint: %t", row.Name, row.State, routed)
		}
	}
}
