package top_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/top"
)

func TestWhatHappensIsShownByTenantAndModel(t *testing.T) {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		fmt.Fprintf(w, `# TYPE nereid_gateway_requests_total counter
nereid_gateway_requests_total{model="m",protocol="http",reason="ok"} %d
nereid_gateway_requests_total{model="m",protocol="grpc",reason="ok"} 5
nereid_gateway_requests_total{model="m",protocol="http",reason="quota_exceeded"} %d
nereid_gateway_requests_total{model="idle",protocol="http",reason="ok"} 7
# TYPE nv_inference_count counter
nv_inference_count{model="m",version="1"} %d
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="m",version="1"} %d
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 3
# TYPE nereid_gateway_tenant_requests_total counter
nereid_gateway_tenant_requests_total{tenant="acme",class="",band="high",outcome="good"} %d
nereid_gateway_tenant_requests_total{tenant="small",class="",band="low",outcome="quota_exceeded"} %d
# TYPE nereid_gateway_tenant_cost_units_total counter
nereid_gateway_tenant_cost_units_total{tenant="acme",class="",band="high"} %d
`, 1000*n, 100*n, 1000*n, 250*n, 1000*n, 100*n, 500*n)
	}))
	defer server.Close()
	before, err := top.Read(t.Context(), []string{server.URL})
	if err != nil {
		t.Fatal(err)
	}
	after, err := top.Read(t.Context(), []string{strings.TrimPrefix(server.URL, "http://")})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := top.Print(&b, before, after); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	model, tenants := strings.Fields(lines[1]), lines[len(lines)-3:]
	if model[0] != "m" || model[3] != "4.0" || model[4] != "3" || model[5] != "quota_exceeded" {
		t.Errorf("the model is shown as %q", lines[1])
	}
	if !strings.HasPrefix(lines[2], "idle") || !strings.HasPrefix(tenants[0], "acme") || !strings.HasPrefix(tenants[1], "small") || !strings.Contains(tenants[1], "quota_exceeded") {
		t.Errorf("shown:\n%s", b.String())
	}
}

func TestOtherPortsAreRecognized(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	if _, err := top.Read(t.Context(), []string{server.URL}); err == nil || !strings.Contains(err.Error(), "--metrics-port") {
		t.Error(err)
	}
}
