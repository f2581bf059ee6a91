package gateway_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

const (
	forbidding = "version: 1\nanonymous: {tier: t}\ntiers: {t: {models: [other]}}\n"
	allowing   = "version: 1\nanonymous: {tier: t}\ntiers: {t: {models: [m]}}\n"
	broken     = "version: 1\nanonymous: {tier: none}\n"
)

// infers sends inferences until one has the status, since policies take a moment to change.
func (h *harness) infers(status int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		got, body := h.do(http.MethodPost, "/v2/models/m/infer", inferBody)
		if got == http.StatusOK {
			<-h.echo.submitted
		}
		if got == status {
			return
		}
		if ctx.Err() != nil {
			h.t.Fatalf("an inference stays %d %s, want %d", got, body, status)
		}
	}
}

func TestAPolicysFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(forbidding)
	h := start(t, nil, func(c *gateway.Config) { c.Policy = file })
	h.serveModel()
	h.infers(http.StatusForbidden)
	write(allowing)
	h.infers(http.StatusOK)
	write(broken)
	write(broken + "# again\n")
	<-time.After(2500 * time.Millisecond) // it is looked at each second
	h.infers(http.StatusOK)
	write(forbidding)
	h.infers(http.StatusForbidden)
}

func TestAGatewayDoesNotStartWithAPolicyThatIsNotValid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	b := openBus(t, bus.Config{Lease: time.Hour})
	defer func() { _ = b.Close() }()
	c := gateway.Default()
	c.HTTPAddress, c.HTTPPort, c.GRPCAddress, c.GRPCPort, c.Policy = "127.0.0.1", 0, "127.0.0.1", 0, file
	g, err := gateway.New(c, gateway.Deps{Bus: b, Dispatcher: &echo{}, Clock: mono.New(), Pool: tensor.NewPool(0), Metrics: prometheus.NewRegistry(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); errs.Of(err) != errs.PolicyInvalid || !strings.Contains(err.Error(), file+":2:") {
		t.Error(err)
	}
}

func TestTheRegistrysPolicyIsInForceFromTheFirstCallOn(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	set := func(h *harness, text string) {
		put(h, bus.Policies, "current", &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: text, Source: "policy.yaml"})
	}
	set(&harness{t: t, bus: b}, "version: 1\ntenants: {}\nanonymous: {tier: t}\ntiers: {t: {apis: [health]}}\n")
	h := startOn(t, b, nil, nil)
	if status, body := h.do(http.MethodGet, "/v2", ""); status != http.StatusForbidden {
		t.Errorf("the first call: %d %s", status, body)
	}
	h.serveModel()
	set(h, allowing)
	h.infers(http.StatusOK)
	set(h, broken)
	set(h, forbidding)
	h.infers(http.StatusForbidden)
}

// Three gateways share a tenant's limit of 200 requests a second: however the requests arrive, they accept no
// more than the burst, the refill and what has been leased.
func TestGatewaysShareTheLimitsOfTenants(t *testing.T) {
	const rate, gateways = 200, 3
	first := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	var all []*harness
	for i := range gateways {
		b := first
		if i > 0 {
			var err error
			if b, err = bus.Open(t.Context(), bus.Config{URL: first.Addr()}); err != nil {
				t.Fatal(err)
			}
		} else {
			put(&harness{t: t, bus: b}, bus.Policies, "current", &nereidv1.PolicyValue{
				Schema: nereidv1.Schema, Text: "version: 1\nanonymous: {tier: t}\ntiers: {t: {limits: {requests_per_second: " + strconv.Itoa(rate) + "}}}\n",
			})
		}
		all = append(all, startWith(t, gateway.Deps{Bus: b, SharedQuotas: true}, nil, func(c *gateway.Config) { c.ID = "g" + strconv.Itoa(i) }))
	}
	all[0].serveModel()
	for _, h := range all[1:] {
		<-h.gateway.Started()
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var taken, refused atomic.Int64
	var group sync.WaitGroup
	for _, h := range all {
		group.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+h.http+"/v2/models/m/infer", strings.NewReader(inferBody))
				if err != nil {
					t.Error(err)
					return
				}
				response, err := client.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
				switch response.StatusCode {
				case http.StatusOK:
					<-h.echo.submitted
					taken.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
				default:
					t.Errorf("status %d", response.StatusCode)
				}
			}
		})
	}
	group.Wait()
	given := rate + rate*time.Since(begun).Seconds()
	t.Logf("%d taken, %d refused, %.0f given", taken.Load(), refused.Load(), given)
	if most := given + gateways*(rate*0.02+1); float64(taken.Load()) > most { // and each gateway's initial amount before its first lease
		t.Errorf("%d requests were taken, %.0f at most might have been", taken.Load(), most)
	}
	if enough := float64(taken.Load()+refused.Load()) > 2*given; enough && float64(taken.Load()) < 0.5*given {
		t.Errorf("%d requests were taken of %.0f", taken.Load(), given)
	}
}

// A burst to one gateway is accepted, although that gateway initially holds only a part of the limit.
func TestABurstToOneGatewayIsTaken(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	put(&harness{t: t, bus: b}, bus.Policies, "current", &nereidv1.PolicyValue{
		Schema: nereidv1.Schema, Text: "version: 1\nanonymous: {tier: t}\ntiers: {t: {budgets: [{requests: 9, per: 8760h}]}}\n",
	})
	h := startWith(t, gateway.Deps{Bus: b, SharedQuotas: true}, nil)
	h.serveModel()
	for i := range 10 {
		status, body := h.do(http.MethodPost, "/v2/models/m/infer", inferBody)
		if status == http.StatusOK {
			<-h.echo.submitted
		}
		if want := i < 9; (status == http.StatusOK) != want {
			t.Errorf("request %d of 9: %d %s", i+1, status, body)
		}
	}
}

// A limit that is used up refills with time, even if a lease in between found nothing.
func TestLimitsThatAreUsedUpComeAgain(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	put(&harness{t: t, bus: b}, bus.Policies, "current", &nereidv1.PolicyValue{
		Schema: nereidv1.Schema, Text: "version: 1\nanonymous: {tier: t}\ntiers: {t: {limits: {requests_per_second: 2}}}\n",
	})
	h := startWith(t, gateway.Deps{Bus: b, SharedQuotas: true}, nil)
	h.serveModel()
	for range 3 {
		h.infers(http.StatusTooManyRequests)
		<-time.After(300 * time.Millisecond) // leases find nothing meanwhile
		h.infers(http.StatusOK)
	}
}
