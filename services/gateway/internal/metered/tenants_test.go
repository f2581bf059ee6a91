package metered_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/gateway/internal/metered"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

func TestRequestsAreCountedByTenantAndOutcome(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := metered.New(registry)
	p := m.Protocol("grpc")
	request := func(tenant string, reason errs.Reason, deadline mono.Time) {
		o := path.Outcome{Model: infer.ModelID{Name: "m"}, Tenant: tenant, Class: "c", Band: "b", Received: 1, Started: 2, Ended: 10, Reason: reason}
		o.Execution.Cost = 2 * time.Millisecond
		o.Deadline = deadline
		p.Ended(&o)
	}
	request("acme", "", 0)
	request("acme", "", 20)
	request("acme", "", 9) // and so late
	request("acme", errs.QuotaExceeded, 0)
	request("", "", 0) // without a policy
	want := `
# HELP nereid_gateway_tenant_cost_units_total Milliseconds of device time that requests of a tenant have used.
# TYPE nereid_gateway_tenant_cost_units_total counter
nereid_gateway_tenant_cost_units_total{band="b",class="c",tenant="acme"} 8
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "nereid_gateway_tenant_cost_units_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(registry, "nereid_gateway_tenant_requests_total"); err != nil || n != 3 {
		t.Errorf("%d series, %v", n, err)
	}
}

func TestManyTenantsShareSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	p := metered.New(registry).Protocol("grpc")
	for i := range 1000 {
		p.Ended(&path.Outcome{Model: infer.ModelID{Name: "m"}, Tenant: fmt.Sprint("t", i), Band: "b", Received: 1, Started: 2, Ended: 3})
	}
	if n, err := testutil.GatherAndCount(registry, "nereid_gateway_tenant_requests_total"); err != nil || n != 201 {
		t.Errorf("%d series of 1,000 tenants, %v", n, err)
	}
}
