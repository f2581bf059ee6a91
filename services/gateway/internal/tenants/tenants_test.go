package tenants_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// caller is a call with headers and the names of a certificate.
type caller struct {
	headers map[string]string
	names   []string
}

func (c caller) Header(name string) []string {
	if v, ok := c.headers[name]; ok {
		return []string{v}
	}
	return nil
}

func (c caller) Names() []string { return c.names }

type nobody struct{}

func (nobody) Shadowed(string, errs.Reason) {}
func (nobody) Retried(string, bool)         {}

func read(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, findings := policy.Read([]byte(text))
	if p == nil {
		t.Fatal(findings)
	}
	return p
}

const issuer = `
version: 1
tenants: {acme: {subjects: ["service-*"], keys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}], certificates: ["*.acme"]}}
tokens: [{issuer: "https://id", audience: nereid, jwks: JWKS}]
`

func TestCallersAreIdentifiedByWhatTheySend(t *testing.T) {
	all := tenants.New(nobody{}, time.Now)
	text := issuer[:strings.Index(issuer, "tokens:")]
	all.Set(read(t, text), nil)
	for _, tt := range []struct {
		name   string
		caller caller
		tenant string
		reason errs.Reason
	}{
		{"a bearer key", caller{headers: map[string]string{"authorization": "bearer foo"}}, "acme", ""},
		{"a key in a header", caller{headers: map[string]string{"x-api-key": "foo"}}, "acme", ""},
		{"a certificate", caller{names: []string{"web.acme"}}, "acme", ""},
		{"a key beside a certificate", caller{headers: map[string]string{"x-api-key": "no"}, names: []string{"web.acme"}}, "", errs.TokenInvalid},
		{"a foreign certificate", caller{names: []string{"web.other"}}, "", errs.TokenMissing},
		{"another scheme", caller{headers: map[string]string{"authorization": "Basic Zm9v"}}, "", errs.TokenInvalid},
		{"a key of megabytes", caller{headers: map[string]string{"x-api-key": strings.Repeat("x", 1<<20)}}, "", errs.TokenInvalid},
		{"nothing", caller{}, "", errs.TokenMissing},
	} {
		who, err := all.Current().Identify(tt.caller)
		if errs.Of(err) != tt.reason || err == nil && who.Name != tt.tenant {
			t.Errorf("%s: %v, %v", tt.name, who, err)
		}
	}
}

func TestWhatWasUsedOutlivesAPolicy(t *testing.T) {
	now := time.Unix(1000, 0)
	all := tenants.New(nobody{}, func() time.Time { return now })
	policed := func(perSecond string) *tenants.Tenant {
		all.Set(read(t, "version: 1\ntiers: {free: {limits: {requests_per_second: "+perSecond+"}}}\nanonymous: {tier: free}"), nil)
		who, err := all.Current().Identify(caller{})
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	take := func(who *tenants.Tenant) (n int) {
		for n < 1000 {
			if _, err := reserve(t, who, tenants.Demand{}); err != nil {
				break
			}
			n++
		}
		return n
	}
	if n := take(policed("5")); n != 5 {
		t.Errorf("%d of 5", n)
	}
	if n := take(policed("10")); n != 0 {
		t.Errorf("%d at once under a new policy", n)
	}
	now = now.Add(time.Second)
	if n := take(policed("10")); n != 10 {
		t.Errorf("%d after a second of 10", n)
	}
}

func TestConditionsDoNotSeeCredentials(t *testing.T) {
	seen := tenants.Headers(caller{headers: map[string]string{"authorization": "Bearer foo", "x-api-key": "foo", "cookie": "a=b", "x-user": "7"}})
	for _, name := range []string{"authorization", "x-api-key", "cookie"} {
		if v := seen(name); v != nil {
			t.Errorf("%s: %v", name, v)
		}
	}
	if v := seen("x-user"); len(v) != 1 {
		t.Errorf("x-user: %v", v)
	}
}

func BenchmarkReserve(b *testing.B) {
	p, _ := policy.Read([]byte("version: 1\ntiers: {free: {limits: {requests_per_second: 1e12, cost_units_per_second: 1e12, concurrency: 10}}}\nanonymous: {tier: free}"))
	all := tenants.New(nobody{}, time.Now)
	all.Set(p, nil)
	b.ReportAllocs()
	for b.Loop() {
		who, err := all.Current().Identify(caller{})
		if err != nil {
			b.Fatal(err)
		}
		r, err := reserve(b, who, tenants.Demand{Cost: 1})
		if err != nil {
			b.Fatal(err)
		}
		r.Settle(1)
	}
}

// Before a model's requests have said what they cost, it is predicted by what is kept of
// its executions, and by the nearest size.
func TestPredictionsBeginWithWhatIsKept(t *testing.T) {
	var c tenants.Costs
	model := infer.ModelID{Name: "m"}
	if got := c.Predict(model, 100, 1); got != 0 {
		t.Errorf("%v for a model of which nothing is known", got)
	}
	kept := []infer.Cost{
		{Device: "cpu", Magnitude: 4, BatchSize: 8, Executions: 30, Mean: 16 * time.Millisecond},
		{Device: "cpu", Magnitude: 16, BatchSize: 1, Executions: 2, Mean: 50 * time.Millisecond},
	}
	c.Recall(model, kept)
	for _, tt := range []struct {
		elements, rows int64
		want           float64
	}{{8, 1, 2}, {24, 3, 6}, {1, 1, 2}, {1 << 15, 1, 50}, {1 << 30, 1, 50}} {
		if got := c.Predict(model, tt.elements, tt.rows); got != tt.want {
			t.Errorf("%d elements in %d rows: %v, want %v", tt.elements, tt.rows, got, tt.want)
		}
	}
	for range 100 {
		c.Learn(model, 8, 1, 2, 3)
	}
	c.Recall(model, kept)
	if got := c.Predict(model, 8, 1); got < 2.9 {
		t.Errorf("%v after requests that cost 3", got)
	}
}

// reserve takes a request through both steps.
func reserve(t testing.TB, who *tenants.Tenant, d tenants.Demand) (tenants.Reservation, error) {
	t.Helper()
	r, err := who.Enter(t.Context(), false)
	if err == nil {
		if err = r.Price(t.Context(), d); err != nil {
			r.Settle(0)
		}
	}
	return r, err
}
