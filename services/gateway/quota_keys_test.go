package gateway_test

import (
	"net/http"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

// The store keeps what is left of a tenant's limits until they are full again.
func TestWhatIsLeftOfLimitsEndsWhenTheyAreWhole(t *testing.T) {
	b := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	put(&harness{t: t, bus: b}, bus.Policies, "current", &nereidv1.PolicyValue{
		Schema: nereidv1.Schema, Text: "version: 1\nanonymous: {tier: t}\ntiers: {t: {limits: {requests_per_second: 100}}}\n",
	})
	quotas, err := bus.NewBucket(b, bus.Quotas, bus.Values[*nereidv1.QuotaValue]())
	if err != nil {
		t.Fatal(err)
	}
	events := quotas.Watch(t.Context())
	h := startWith(t, gateway.Deps{Bus: b, SharedQuotas: true}, nil)
	h.serveModel()
	h.infers(http.StatusOK)
	stored := false
	for e := range events {
		if e.Key != "anonymous" {
			continue
		}
		if stored = stored || e.Kind == bus.EventPut; stored && e.Kind == bus.EventDelete {
			return
		}
	}
	t.Error("what is left of the limits stays in the store")
}
