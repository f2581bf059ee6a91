package tenants_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// tiered is the anonymous tenant of a tier.
func tiered(t *testing.T, tier string, more ...string) func() *tenants.Tenant {
	t.Helper()
	all := tenants.New(nobody{}, time.Now)
	all.Set(read(t, "version: 1\ntiers: {t: "+tier+"}\nanonymous: {tier: t}\n"+fmt.Sprint(append([]any{}, anys(more)...)...)), nil)
	return func() *tenants.Tenant { return identify(t, all, caller{}) }
}

func anys(texts []string) (list []any) {
	for _, text := range texts {
		list = append(list, text)
	}
	return list
}

// What a request did not cost is its tenant's again, and what it cost more is owed.
func TestWhatIsReservedIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		who := tiered(t, "{budgets: [{cost_units: 100, per: 24h}]}")
		spend := func(reserved, cost float64) error {
			r, err := reserve(t, who(), tenants.Demand{Cost: reserved})
			r.Settle(cost)
			r.Settle(cost) // a second time it is of nobody
			return err
		}
		for i, tt := range []struct {
			reserved, cost float64
			want           errs.Reason
		}{
			{90, 0, ""},                 // of 100
			{90, 30, ""},                // of 100
			{71, 0, errs.QuotaExceeded}, // of 70
			{70, 20, ""},                // of 70
			{10, 200, ""},               // of 50, of which nothing is left
			{0, 0, errs.QuotaExceeded},  // one of which nothing is known
		} {
			if err := spend(tt.reserved, tt.cost); errs.Of(err) != tt.want {
				t.Errorf("request %d: %v, want %q", i+1, err, tt.want)
			}
		}
		<-time.After(24 * time.Hour)
		if err := spend(100, 0); err != nil {
			t.Errorf("in the next window: %v", err)
		}
	})
}

// However requests come and end: what is in flight is no more than may be, and when all have
// ended there is as much again as there was.
func TestReservationsLeaveNothingBehind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := time.Unix(1_000_000, 0)
		all := tenants.New(nobody{}, func() time.Time { return now })
		p, findings := policy.Read([]byte("version: 1\ntiers: {t: {limits: {concurrency: 4}, budgets: [{cost_units: 1000, per: 24h}]}}\nanonymous: {tier: t}"))
		if p == nil {
			rt.Fatal(findings)
		}
		all.Set(p, nil)
		who, err := all.Current().Identify(caller{})
		if err != nil {
			rt.Fatal(err)
		}
		type flight struct {
			r    tenants.Reservation
			cost float64
		}
		var flying []flight
		spent, held := 0.0, 0.0
		land := func(cost float64) {
			last := flying[len(flying)-1]
			flying = flying[:len(flying)-1]
			last.r.Settle(cost)
			spent, held = spent+cost, held-last.cost
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if len(flying) > 0 && rapid.Bool().Draw(rt, "lands") {
				land(float64(rapid.IntRange(0, 20).Draw(rt, "cost")))
				continue
			}
			cost := float64(rapid.IntRange(1, 400).Draw(rt, "asked"))
			r, err := reserve(t, who, tenants.Demand{Cost: cost})
			switch fits := cost <= 1000-spent-held+1e-6; {
			case len(flying) == 4 && errs.Of(err) != errs.TenantConcurrency:
				rt.Fatalf("a fifth request in flight: %v", err)
			case len(flying) < 4 && (err == nil) != fits:
				rt.Fatalf("%v units of %v: %v", cost, 1000-spent-held, err)
			}
			if err == nil {
				flying, held = append(flying, flight{r, cost}), held+cost
			}
		}
		for len(flying) > 0 {
			land(0)
		}
		if rest := 1000 - spent; rest > 1 {
			if _, err := reserve(t, who, tenants.Demand{Cost: rest}); err != nil {
				rt.Fatalf("the %v units that are left: %v", rest, err)
			}
		}
	})
}

func TestBytesAndRatesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		who := tiered(t, "{limits: {bytes_per_second: 1000, requests_per_second: 10, burst: 2s}}")
		take := func(bytes float64) error {
			r, err := reserve(t, who(), tenants.Demand{Bytes: bytes})
			r.Settle(0)
			return err
		}
		if err := take(2000); err != nil {
			t.Errorf("a burst: %v", err)
		}
		if err := take(500); errs.Of(err) != errs.QuotaExceeded {
			t.Errorf("without a rest: %v", err)
		}
		<-time.After(400 * time.Millisecond)
		err := take(500)
		if errs.Of(err) != errs.QuotaExceeded || errs.From(err).RetryAfter != 100*time.Millisecond {
			t.Errorf("after too short a time: %v, after %v", err, errs.From(err).RetryAfter)
		}
		<-time.After(100 * time.Millisecond)
		if err := take(500); err != nil {
			t.Errorf("after the time that was named: %v", err)
		}
		<-time.After(time.Hour) // more than a burst is not saved
		if err := take(1e9); err != nil {
			t.Errorf("more than the burst, with all of it there: %v", err)
		}
		if err := take(1); errs.Of(err) != errs.QuotaExceeded {
			t.Errorf("after a request of a million times the limit: %v", err)
		}
	})
}

// Numbers of a client's that are at their ends break no limit.
func TestDemandsAtTheirEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []float64{math.MaxFloat64, math.MaxInt64, math.SmallestNonzeroFloat64, 0} {
			who := tiered(t, "{limits: {bytes_per_second: 1000, cost_units_per_second: 1000}}")
			r, err := reserve(t, who(), tenants.Demand{Cost: n, Bytes: n})
			if err != nil {
				t.Errorf("%v: %v", n, err)
			}
			r.Settle(0)
			if _, err := reserve(t, who(), tenants.Demand{Cost: 1001, Bytes: 1001}); (errs.Of(err) == errs.QuotaExceeded) != (n > 1) {
				t.Errorf("after %v: %v", n, err)
			}
		}
	})
}

// A tenant without a bound of its own leaves others a quarter of the memory.
func TestMemoryIsShared(t *testing.T) {
	all := memory.NewBudget(1000)
	bounded, usual := tiered(t, "{limits: {memory: 100B}}"), tiered(t, "{}")
	for _, tt := range []struct {
		of   *memory.Budget
		n    int64
		want errs.Reason
	}{
		{bounded().Memory(all), 100, ""},
		{bounded().Memory(all), 1, errs.TenantMemory},
		{usual().Memory(all), 751, errs.TenantMemory},
		{usual().Memory(all), 750, ""},
		{usual().Memory(all), 1, errs.TenantMemory},
		{all, 151, errs.MemoryFull},
		{all, 150, ""},
	} {
		if err := tt.of.Reserve(tt.n); errs.Of(err) != tt.want {
			t.Errorf("%d bytes: %v, want %q", tt.n, err, tt.want)
		}
	}
}

// Retries are as many as the other requests have made up for, and ten at first.
func TestRetriesAreAShareOfTheRequests(t *testing.T) {
	who := tiered(t, "{}", "retries: {budget: 50%}")
	send := func(again bool) bool {
		r, err := who().Enter(t.Context(), again)
		if err != nil && errs.Of(err) != errs.RetryBudget {
			t.Fatal(err)
		}
		r.Settle(0)
		return err == nil
	}
	accepted := func(of int) (n int) {
		for range of {
			if send(true) {
				n++
			}
		}
		return n
	}
	if n := accepted(50); n != 10 {
		t.Errorf("%d retries at first", n)
	}
	for range 8 {
		send(false)
	}
	if n := accepted(50); n != 4 {
		t.Errorf("%d retries for 8 requests", n)
	}
	for range 10_000 {
		send(false)
	}
	if n := accepted(500); n != 100 {
		t.Errorf("%d retries are saved up", n)
	}
}

func TestCallsAreRefusedWhereAPolicyIsMissing(t *testing.T) {
	var none *tenants.Tenants
	if v, err := none.View(); v != nil || err != nil {
		t.Errorf("without tenants: %v, %v", v, err)
	}
	all := tenants.New(nobody{}, time.Now)
	for _, tt := range []struct {
		name     string
		required bool
		set      string
		reason   errs.Reason
		inForce  bool
	}{
		{"at first", false, "", "", false},
		{"where it is missing", true, "", errs.PolicyMissing, false},
		{"where it is not any more", false, "", "", false},
		{"where it is missing and comes", true, "version: 1\nanonymous: {}", "", true},
		{"where it is there and needed no more", false, "", "", true},
	} {
		if all.Require(tt.required); tt.set != "" {
			all.Set(read(t, tt.set), nil)
		}
		if v, err := all.View(); errs.Of(err) != tt.reason || (v != nil) != tt.inForce {
			t.Errorf("%s: %v, %v", tt.name, v, err)
		}
	}
}

// Costs that are no numbers, or of sizes that are none, spoil no prediction.
func TestPredictionsOfStrangeRequests(t *testing.T) {
	var c tenants.Costs
	model := infer.ModelID{Name: "m"}
	for _, cost := range []float64{0, -1, math.Inf(-1)} {
		c.Learn(model, 8, 1, 1, cost)
	}
	if got := c.Predict(model, 8, 1); got != 0 {
		t.Errorf("%v is learned from what cost nothing", got)
	}
	c.Learn(model, 8, 2, 1, 10)
	for _, size := range [][2]int64{{0, 0}, {-1, -1}, {math.MaxInt64, 1}, {1, math.MaxInt64}, {math.MinInt64, math.MinInt64}} {
		if got := c.Predict(model, size[0], size[1]); !(got >= 5) || math.IsInf(got, 0) {
			t.Errorf("%d elements in %d rows: %v", size[0], size[1], got)
		}
	}
	errors := make(map[string]float64)
	c.Errors(func(model string, relative float64) { errors[model] = relative })
	if errors["m"] != 0.9 {
		t.Errorf("the errors are %v", errors)
	}
}
