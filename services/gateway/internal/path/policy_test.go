package path_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// counts are what a policy's meter has counted.
type counts []string

func (c *counts) Shadowed(tenant string, reason errs.Reason) {
	*c = append(*c, tenant+" "+string(reason))
}
func (*counts) Retried(string, bool) {}

// underPolicy is a rig whose calls are subject to a policy. The tenant greedy has the key
// "greedy", modest "modest".
func underPolicy(t *testing.T, text string, counted *counts) *rig {
	t.Helper()
	tenant := func(name string) string {
		return "  " + name + ": {tier: " + name + ", keys: [{sha256: " + policy.Key(name) + "}]}\n"
	}
	p, findings := policy.Read([]byte("version: 1\ntenants:\n" + tenant("greedy") + tenant("modest") + text))
	if p == nil {
		t.Fatal(findings)
	}
	all := tenants.New(counted, time.Now)
	all.Set(p, nil)
	return newRig(t, path.Options{Tenants: all, Costs: new(tenants.Costs), Budget: core.NewBudget(100)})
}

func (r *rig) as(t *testing.T, key, model string) error {
	t.Helper()
	r.header = map[string]string{"x-api-key": key}
	return r.infer(t, model)
}

func TestTenantsAreRefusedBeyondTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := underPolicy(t, `
tiers:
  greedy: {limits: {requests_per_second: 2, burst: 2s}}
  modest: {}
`, new(counts))
		submitted := 0
		submit := r.submit
		r.submit = func(q *infer.Request) error { submitted++; return submit(q) }
		for range 4 {
			if err := r.as(t, "greedy", "m"); err != nil {
				t.Fatal(err)
			}
		}
		err := r.as(t, "greedy", "m")
		if e := errs.From(err); errs.Of(err) != errs.QuotaExceeded || e.RetryAfter != time.Second/2 || submitted != 4 || r.last.Reason != errs.QuotaExceeded {
			t.Fatalf("%v, retry after %v; %d were submitted, the last is counted as %q", err, e.RetryAfter, submitted, r.last.Reason)
		}
		if err := r.as(t, "modest", "m"); err != nil {
			t.Error(err)
		}
		<-time.After(time.Second / 2)
		if err := r.as(t, "greedy", "m"); err != nil {
			t.Errorf("after the time that the refusal has named: %v", err)
		}
	})
}

func TestDeviceTimeIsReservedAndSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := underPolicy(t, `
tiers:
  greedy: {limits: {cost_units_per_second: 100}}
  modest: {budgets: [{cost_units: 50, per: 1h}]}
`, new(counts))
		r.submit = func(q *infer.Request) error {
			p := r.response(true)
			p.Execution = infer.Execution{Cost: 30 * time.Millisecond, BatchSize: 1}
			r.respond(q, p)
			return nil
		}
		served := func(tenant string) (n int) {
			for r.as(t, tenant, "m") == nil {
				n++
			}
			return n
		}
		// The first is of unknown cost; what was not predicted is owed.
		if n := served("greedy"); n != 3 {
			t.Errorf("%d requests of 30 ms were served at once, of 100 ms", n)
		}
		<-time.After(10 * time.Second)
		if n := served("greedy"); n != 3 {
			t.Errorf("%d requests of 30 ms were served after a time, of 100 ms", n)
		}
		if n := served("modest"); n != 1 {
			t.Errorf("%d requests of 30 ms were served of a budget of 50 ms", n)
		}
		left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour))
		if err := r.as(t, "modest", "m"); errs.From(err).RetryAfter != left {
			t.Errorf("retry after %v, the window ends in %v", errs.From(err).RetryAfter, left)
		}
	})
}

func TestTenantsHaveSoManyRequestsInFlight(t *testing.T) {
	r := underPolicy(t, "tiers: {greedy: {limits: {concurrency: 1}}, modest: {}}", new(counts))
	r.header = map[string]string{"authorization": "Bearer greedy"}
	c := r.call(core.InferenceAPI, "m")
	c.Body = body{r, c}
	if err := r.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := r.as(t, "greedy", "m"); errs.Of(err) != errs.TenantConcurrency {
		t.Errorf("a second request: %v", err)
	}
	if err := r.Finish(c); err != nil {
		t.Fatal(err)
	}
	if err := r.as(t, "greedy", "m"); err != nil {
		t.Errorf("when the first has ended: %v", err)
	}
}

func TestCallersWithoutRightsAreRefused(t *testing.T) {
	const text = "tiers: {greedy: {models: [other]}, modest: {apis: [metadata]}}"
	r := underPolicy(t, text, new(counts))
	r.receive = nil
	for _, tt := range []struct {
		key    string
		reason errs.Reason
	}{{"", errs.TokenMissing}, {"wrong", errs.TokenInvalid}, {"greedy", errs.TenantForbidden}, {"modest", errs.TenantForbidden}} {
		if r.header = map[string]string{"x-api-key": tt.key}; tt.key == "" {
			r.header = nil
		}
		if err := r.infer(t, "m"); errs.Of(err) != tt.reason {
			t.Errorf("%q: %v, want %v", tt.key, err, tt.reason)
		}
	}
	r.header = nil
	if err := r.Do(t.Context(), r.call(core.HealthAPI, ""), func() error { return nil }); err != nil {
		t.Errorf("a probe: %v", err)
	}
	r.header = map[string]string{"x-api-key": "greedy"}
	if err := r.Do(t.Context(), r.call(core.MetadataAPI, "m"), func() error { return nil }); errs.Of(err) != errs.TenantForbidden {
		t.Errorf("the metadata of a model that the tenant may not use: %v", err)
	}
	all := r.call(core.StatisticsAPI, "")
	all.AllModels = true
	if err := r.Do(t.Context(), all, func() error { return nil }); errs.Of(err) != errs.TenantForbidden {
		t.Errorf("the statistics of all models: %v", err)
	}
}

func TestShadowPoliciesCountAndRefuseNothing(t *testing.T) {
	var counted counts
	r := underPolicy(t, "shadow: true\ntiers: {greedy: {models: [other], limits: {requests_per_second: 1}}, modest: {}}", &counted)
	for _, key := range []string{"greedy", "greedy", "wrong"} {
		if err := r.as(t, key, "m"); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	want := counts{"greedy tenant_forbidden", "greedy tenant_forbidden", "greedy quota_exceeded", " token_invalid"}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestRequestsCarryWhatThePolicySaysOfThem(t *testing.T) {
	r := underPolicy(t, `
bands: [{name: high, minimum: 0}, {name: low, minimum: 5%}]
tiers: {greedy: {weight: 2.5, deadline: 3s}, modest: {}}
classes:
  - {name: small, when: "elements == 4 && rows == 1 && inputs['X'][0] == 4", band: high}
routes:
  - {when: "headers['x-canary'] == '1'", to: [{model: cached}]}
`, new(counts))
	var got infer.Request
	submit := r.submit
	r.submit = func(q *infer.Request) error { got = *q; return submit(q) }
	r.header = map[string]string{"x-api-key": "greedy", "x-canary": "1"}
	if err := r.infer(t, "m"); err != nil {
		t.Fatal(err)
	}
	if got.Tenant != "greedy" || got.CostClass != "small" || got.Share != (infer.Share{Band: 1, Weight: 2500}) ||
		got.Deadline.Sub(got.Received) != 3*time.Second || got.Model.Name != "cached" {
		t.Errorf("%+v", got)
	}
	r.decode = func(c *path.Call) error { c.SetTimeout(time.Hour); return nil }
	if err := r.as(t, "modest", "m"); err != nil || got.Deadline.Sub(got.Received) != time.Hour || got.Model.Name != "m" {
		t.Errorf("%v: %+v", err, got)
	}
	r.decode = func(c *path.Call) error { c.Request.Timeout = time.Minute; return nil }
	if err := r.as(t, "modest", "m"); err != nil || got.Deadline.Sub(got.Received) != time.Minute {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestRetriesAreBudgeted(t *testing.T) {
	r := underPolicy(t, "retries: {budget: 50%}\ntiers: {greedy: {}, modest: {}}", new(counts))
	taken := func(n int, attempt string) (ok int) {
		for range n {
			r.header = map[string]string{"x-api-key": "greedy", "grpc-previous-rpc-attempts": attempt}
			err := r.infer(t, "m")
			switch {
			case err == nil:
				ok++
			case errs.Of(err) != errs.RetryBudget || !strings.Contains(err.Error(), "50%"):
				t.Fatal(err)
			}
		}
		return ok
	}
	if n := taken(100, "1"); n != 10 {
		t.Errorf("%d retries were taken at first", n)
	}
	if n := taken(8, "0"); n != 8 {
		t.Errorf("%d of 8 first attempts were taken", n)
	}
	if n := taken(100, "1"); n != 4 {
		t.Errorf("%d retries were taken after 8 first attempts", n)
	}
}

// What a call says of its execution is its own, though transports use calls again: a
// refused one has none, and teaches nothing about costs.
func TestARefusedCallHasNoExecution(t *testing.T) {
	r := underPolicy(t, "tiers: {greedy: {budgets: [{requests: 1, per: 24h}]}, modest: {}}", new(counts))
	r.header = map[string]string{"x-api-key": "greedy"}
	r.submit = func(q *infer.Request) error {
		p := r.response(true)
		p.Execution = infer.Execution{Cost: 30 * time.Millisecond, BatchSize: 1}
		r.respond(q, p)
		return nil
	}
	c := r.call(core.InferenceAPI, "m")
	c.Body = body{r, c}
	if err := r.Infer(t.Context(), c); err != nil || r.last.Execution.BatchSize != 1 {
		t.Fatalf("%v, %+v", err, r.last.Execution)
	}
	c.Model = "m"
	if err := r.Infer(t.Context(), c); errs.Of(err) != errs.QuotaExceeded || r.last.Execution != (infer.Execution{}) {
		t.Errorf("%v, with the execution %+v", err, r.last.Execution)
	}
}
