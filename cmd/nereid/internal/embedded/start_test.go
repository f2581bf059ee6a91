package embedded

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/gateway"
)

func TestUnsettledAreTheModelsStillLoading(t *testing.T) {
	index := []gateway.IndexEntry{
		{Name: "ready", State: "READY"},
		{Name: "failed", State: "UNAVAILABLE", Reason: "no config"},
		{Name: "loads", State: "LOADING"},
		{Name: "waits"},
	}
	if diff := cmp.Diff([]string{"loads", "waits"}, unsettled(index)); diff != "" {
		t.Error(diff)
	}
}
