package path_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// counts are the calls of a policy's meter.
type counts []string

func (c *counts) Shadowed(tenant string, reason errs.Reason) {
	*c = append(*c, tenant+" "+string(reason))
}
func (*counts) Retried(string, bool) {}

// underPolicy returns a rig whose calls are subject to a policy. The tenant greedy has the key "greedy", and
// modest has "modest".
func underPolicy(t *testing.T, text string, counted *counts) *rig {
	t.Helper()
	return newRig(t, path.Options{Tenants: tenantsOf(t, text, counted), Costs: new(tenants.Costs), Budget: memory.NewBudget(100)})
}

// tenantsOf are those of a policy with the tenants greedy and modest.
func tenantsOf(t *testing.T, text string, counted *counts) *tenants.Tenants {
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
	return all
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
}

func TestShadowPoliciesCountAndRefuseNothing(t *testing.T) {
	var counted counts
	r := underPolicy(t, "shadow: true\ntiers: {greedy: {models: [other], limits: {requests_per_second: 1}}, modest: {}}", &counted)
	for _, key := range []string{"greedy", "greedy", "wrong"} {
		if err := r.as(t, key, "m"); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	want := counts{"greedy tenant_forbidden", "greedy quota_exceeded", "greedy tenant_forbidden", " token_invalid"}
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

// A reused call does not report the execution of its predecessor: a refused call has none, and nothing is
// learned about costs.
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

// A device runs each request for 90 ms, whether or not its client waits. The limit is 100 ms per second.
func TestRequestsThatAreAbandonedCostWhatWasPredicted(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"by their deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 80*time.Millisecond)
		},
		"by their client": func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(80*time.Millisecond, cancel)
			return ctx, cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := underPolicy(t, "tiers: {greedy: {limits: {cost_units_per_second: 100}}, modest: {}}", new(counts))
				r.header = map[string]string{"x-api-key": "greedy"}
				ran := time.Duration(0)
				r.submit = func(q *infer.Request) error {
					ran += 90 * time.Millisecond
					time.AfterFunc(90*time.Millisecond, func() {
						p := r.response(true)
						p.Execution = infer.Execution{Cost: 90 * time.Millisecond, BatchSize: 1}
						r.respond(q, p)
					})
					return nil
				}
				run := func(ctx context.Context) error {
					c := r.call(core.InferenceAPI, "m")
					c.Body = body{r, c}
					return r.Infer(ctx, c)
				}
				if err := run(t.Context()); err != nil { // learns what requests cost
					t.Fatal(err)
				}
				<-time.After(time.Minute)
				ran = 0
				started := time.Now()
				for time.Since(started) < 10*time.Second {
					ctx, cancel := end(t.Context())
					if err := run(ctx); errs.Of(err) == errs.QuotaExceeded {
						<-time.After(errs.From(err).RetryAfter)
					} else if err == nil {
						t.Error("an abandoned request has no error")
					}
					cancel()
				}
				// The burst, and what time has given. It is used up, too.
				if most := 100*time.Millisecond + time.Since(started)/10; ran > most+90*time.Millisecond || ran < most-90*time.Millisecond {
					t.Errorf("the device ran for %v in %v, and might %v", ran, time.Since(started), most)
				}
			})
		})
	}
}

// Unused reservations are returned: completely for requests refused after the quota stage, and the difference
// for those that cost less than predicted.
func TestReservationsAreRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := underPolicy(t, "tiers: {greedy: {budgets: [{cost_units: 100, per: 24h}]}, modest: {}}", new(counts))
		cost := 60 * time.Millisecond
		r.submit = func(q *infer.Request) error {
			p := r.response(true)
			p.Execution = infer.Execution{Cost: cost, BatchSize: 1}
			r.respond(q, p)
			return nil
		}
		if err := r.as(t, "greedy", "m"); err != nil {
			t.Fatal(err)
		}
		if err := r.as(t, "greedy", "m"); errs.Of(err) != errs.QuotaExceeded {
			t.Fatalf("a request of 60 ms of 40 that are left: %v", err)
		}
		<-time.After(24 * time.Hour)
		served := r.submit
		r.submit = func(*infer.Request) error { return errs.New(errs.QueueFull, "full") }
		for range 10 {
			if err := r.as(t, "greedy", "m"); errs.Of(err) != errs.QueueFull {
				t.Fatalf("a request that its scheduler refuses: %v", err)
			}
		}
		r.submit, cost = served, 10*time.Millisecond
		if err := r.as(t, "greedy", "m"); err != nil { // 60 ms were predicted
			t.Fatal(err)
		}
		if err := r.as(t, "greedy", "m"); err != nil {
			t.Errorf("a request of about 57 ms of 90 that are left: %v", err)
		}
	})
}

// Requests beyond a tenant's limits are refused before any of them is read, and explained like other refusals.
func TestLimitsHoldBeforeTheBodyIsRead(t *testing.T) {
	var ended []path.Outcome
	received := 0
	stages := path.Stages()
	for i := range stages {
		if run := stages[i].Run; stages[i].Name == "receive" {
			stages[i].Run = func(c *path.Call) error { received++; return run(c) }
		}
	}
	r := newRig(t, path.Options{
		Tenants: tenantsOf(t, "tiers: {greedy: {limits: {concurrency: 1}}, modest: {}}", new(counts)), Costs: new(tenants.Costs), Budget: memory.NewBudget(100), Stages: stages,
		Observers: []path.Observer{{Ended: func(o *path.Outcome) { ended = append(ended, *o) }}},
	})
	r.header = map[string]string{"x-api-key": "greedy"}
	first := r.call(core.InferenceAPI, "m")
	first.Body = body{r, first}
	if err := r.Start(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := r.infer(t, "m"); errs.Of(err) != errs.TenantConcurrency || received != 1 {
		t.Errorf("a second request: %v, %d were received", err, received)
	}
	if len(ended) != 1 || ended[0].Tenant != "greedy" || ended[0].Band != "default" || ended[0].Reason != errs.TenantConcurrency || ended[0].Request == (infer.RequestID{}) || ended[0].Model.Name != "m" {
		t.Errorf("it ended as %+v", ended)
	}
	if err := r.as(t, "modest", "m"); err != nil {
		t.Errorf("another tenant's: %v", err)
	}
	if err := r.Finish(first); err != nil {
		t.Fatal(err)
	}
	if err := r.as(t, "greedy", "m"); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// A tenant may hold only a part of all memory, so that some remains for others.
func TestATenantHoldsAPartOfAllMemory(t *testing.T) {
	for limits, most := range map[string]int64{"{}": 75, "{limits: {memory: 20B}}": 20} {
		r := underPolicy(t, "tiers: {greedy: "+limits+", modest: {}}", new(counts))
		r.header = map[string]string{"x-api-key": "greedy"}
		err := r.Do(t.Context(), r.call(core.MetadataAPI, ""), func() error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		for n, want := range map[int64]errs.Reason{most: "", most + 1: errs.TenantMemory} {
			c := r.call(core.MetadataAPI, "")
			if err := r.Do(t.Context(), c, func() error { return c.Account.Receive(n) }); errs.Of(err) != want {
				t.Errorf("%d bytes under %s: %v", n, limits, err)
			}
		}
		var other error
		c := r.call(core.MetadataAPI, "")
		if err := r.Do(t.Context(), c, func() error {
			if err := c.Account.Receive(most); err != nil {
				return err
			}
			r.header = map[string]string{"x-api-key": "modest"}
			beside := r.call(core.MetadataAPI, "")
			other = r.Do(t.Context(), beside, func() error { return beside.Account.Receive(25) })
			return nil
		}); err != nil || other != nil {
			t.Errorf("under %s: %v, beside it %v", limits, err, other)
		}
	}
}
