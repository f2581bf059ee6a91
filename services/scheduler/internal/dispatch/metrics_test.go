package dispatch_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

// pendingOf reads the one model's pending gauge.
func pendingOf(t *testing.T, set *stats.Set) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(set)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "nv_inference_pending_request_count" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no pending gauge")
	return 0
}
