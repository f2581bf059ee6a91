package policy_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

func read(t testing.TB) *policy.Policy {
	t.Helper()
	text, err := os.ReadFile("testdata/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, findings := policy.Read(text)
	if p == nil {
		t.Fatal(findings)
	}
	return p
}

func header(pairs ...string) func(string) []string {
	return func(name string) []string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return []string{pairs[i+1]}
			}
		}
		return nil
	}
}

func TestRequestsAreClassified(t *testing.T) {
	p := read(t)
	wide := func(each func(string, []int64)) { each("X", []int64{1, 1000}) }
	for _, tt := range []struct {
		name, tenant string
		request      policy.Request
		want         policy.Class
	}{
		{"by their tier alone", "small", policy.Request{Model: "digits", BatchSize: 1}, policy.Class{Band: 2, Deadline: 2 * time.Second}},
		{"by a header", "acme", policy.Request{Model: "digits", BatchSize: 1, Header: header("x-urgent", "yes")}, policy.Class{Name: "urgent", Deadline: 100 * time.Millisecond}},
		{"not by a header that only others may send", "small", policy.Request{Model: "digits", BatchSize: 1, Header: header("x-urgent", "yes")}, policy.Class{Band: 2, Deadline: 2 * time.Second}},
		{"by the first that matches", "acme", policy.Request{Model: "digits", BatchSize: 9, Elements: 20000, Header: header("x-urgent", "yes")}, policy.Class{Name: "heavy", Band: 2}},
		{"by a shape", "acme", policy.Request{Model: "text", BatchSize: 1, Inputs: wide}, policy.Class{Name: "wide", Band: 2}},
		{"without the input that a condition names", "acme", policy.Request{Model: "text", BatchSize: 1}, policy.Class{Band: 1}},
	} {
		if diff := cmp.Diff(tt.want, p.Classify(p.Tenant(tt.tenant), &tt.request)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRequestsAreRouted(t *testing.T) {
	p := read(t)
	for _, tt := range []struct {
		name    string
		request policy.Request
		draw    float64
		want    policy.Target
	}{
		{"where their client says", policy.Request{Model: "other", Version: "7"}, 0, policy.Target{Model: "other", Version: "7"}},
		{"to a label", policy.Request{Model: "digits", Version: "stable"}, 0, policy.Target{Model: "digits", Version: "1"}},
		{"to a label of a route", policy.Request{Model: "digits", Header: header("x-canary", "1")}, 0, policy.Target{Model: "digits", Version: "2"}},
		{"to another model", policy.Request{Model: "text_old", Version: "3"}, 0, policy.Target{Model: "text_new"}},
		{"by weight", policy.Request{Model: "digits"}, 0.74, policy.Target{Model: "digits", Version: "1"}},
		{"by weight, the last", policy.Request{Model: "digits"}, 0.76, policy.Target{Model: "digits", Version: "2"}},
	} {
		if diff := cmp.Diff(tt.want, p.Route(p.Tenant("acme"), &tt.request, tt.draw)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestStickyRoutesKeepTheirTargetAndTheirWeights(t *testing.T) {
	p := read(t)
	second := 0
	for user := range 4000 {
		r := &policy.Request{Model: "digits", Header: header("x-user", fmt.Sprint(user))}
		first := p.Route(p.Tenant("acme"), r, 0)
		if again := p.Route(p.Tenant("small"), r, 0.99); again != first {
			t.Fatalf("user %d went to %v and then to %v", user, first, again)
		}
		if first.Version == "2" {
			second++
		}
	}
	if second < 900 || second > 1100 {
		t.Errorf("%d of 4,000 users go to a version that is to have a quarter", second)
	}
}

func TestCallersAreIdentified(t *testing.T) {
	p, now := read(t), time.Date(2026, 1, 30, 0, 0, 0, 0, time.UTC)
	one, many := &p.Issuers[0], &p.Issuers[1]
	key := func(key string, now time.Time) func() (*policy.Tenant, error) {
		return func() (*policy.Tenant, error) { return p.ByKey(key, now) }
	}
	token := func(by *policy.Issuer, claims map[string]any) func() (*policy.Tenant, error) {
		return func() (*policy.Tenant, error) { return p.ByToken(by, claims) }
	}
	for _, tt := range []struct {
		name   string
		by     func() (*policy.Tenant, error)
		tenant string
		reason errs.Reason
	}{
		{"a key", key("foo", now), "acme", ""},
		{"an unknown key", key("fo", now), "", errs.TokenInvalid},
		{"a key on its last day", key("bar", now), "small", ""},
		{"an expired key", key("bar", now.AddDate(0, 0, 1)), "", errs.TokenInvalid},
		{"a subject", token(one, map[string]any{"sub": "small|7"}), "small", ""},
		{"an unknown subject", token(one, map[string]any{"sub": "other"}), "", errs.TokenInvalid},
		{"a claim", token(many, map[string]any{"org": "acme"}), "acme", ""},
		{"a claim of a tenant that is not listed", token(many, map[string]any{"org": "new"}), "new@https://many.example", ""},
		{"no claim", token(many, map[string]any{"sub": "small|7"}), "", errs.TokenInvalid},
		{"nothing", p.Anonymous, "anonymous", ""},
	} {
		tenant, err := tt.by()
		if errs.Of(err) != tt.reason || err == nil && tenant.Name != tt.tenant {
			t.Errorf("%s: %v, %v", tt.name, tenant, err)
		}
		if err != nil && (strings.Contains(err.Error(), "foo") || strings.Contains(err.Error(), "bar")) {
			t.Errorf("%s: the key is in %v", tt.name, err)
		}
	}
	if got := p.ByCertificate([]string{"x", "web.acme.example"}); got == nil || got.Name != "acme" {
		t.Errorf("a certificate is of %v", got)
	}
	if got := p.ByCertificate([]string{"acme.example.com"}); got != nil {
		t.Errorf("a foreign certificate is of %v", got)
	}
}

func TestTenantsMayDoWhatTheyAreAllowed(t *testing.T) {
	p := read(t)
	acme, small := p.Tenant("acme"), p.Tenant("small")
	for name, err := range map[string]error{
		"acme's own API": acme.MayCall("model-repository"), "small's by default": small.MayCall("inference"),
		"acme's model": acme.MayUse("any"), "small's model": small.MayUse("text_new"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"an API that acme's list lacks": acme.MayCall("health"), "an API that is closed by default": small.MayCall("model-repository"),
		"a model that small's tier lacks": small.MayUse("private"),
	} {
		if errs.Of(err) != errs.TenantForbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFindingsHaveLinesAndFixes(t *testing.T) {
	const head = "version: 1\nanonymous: {}\n"
	for _, tt := range []struct {
		text, message, fix string
		line               int
	}{
		{"", "empty", "version: 1", 1},
		{"version: 2\nanonymous: {}", "version of the format is 2", "version: 1", 1},
		{"version: 1", "nobody may send", "anonymous", 1},
		{"version: 1\n  x: [", "mapping values", "", 2},
		{"- 1", "must be fields", "", 1},
		{"# nothing", "empty", "version: 1", 1},
		{head + "---\nversion: 1", "second document", "without ---", 3},
		{head + "---\n\t", "cannot start any token", "", 4},
		{head + "shadow: maybe", `want true or false, got "maybe"`, "", 3},
		{head + "tiers:\n  gold: {weight: much}", `want a number, got "much"`, "", 4},
		{head + "labels: {m: {stable: 1.5}}", `want a whole number, got "1.5"`, "", 3},
		{head + "tiers:\n  gold:\n    models:\n    # none yet\n    band: x\nbands: [{name: x}]", "tiers.gold.models has no value", "leave it out", 5},
		{head + "tenants:\n  a:\n    models: ~", "tenants.a.models has no value", "", 5},
		{head + "tenants:\n  a:", "tenants.a has no value", "", 4},
		{"version: 1\nanonymous:\ntenants: {}", "anonymous has no value", "", 2},
		{head + "tenants:\n  a: {models: []}", "list is empty", "for all", 4},
		{head + "tiers:\n  a: {apis: []}", "list is empty", "by default", 4},
		{head + "tenants:\n  a:\n    models: [x, '']", "tenants.a.models[1] is empty", "", 5},
		{head + "tenants:\n  a: {tier: ''}", "tenants.a.tier is empty", "", 4},
		{head + "classes:\n  - name: a\n    when:", "classes[0].when has no value", "", 5},
		{head + "classes:\n  - name: a\n    when: ''", "classes[0].when is empty", "", 5},
		{head + "classes:\n  - name: a\n    models: []", "list is empty", "all", 5},
		{head + "classes:\n  - name: a\n    tenants: []", "list is empty", "any", 5},
		{head + "classes:\n  - name: a\n    tiers: []", "list is empty", "any", 5},
		{head + "routes:\n  - to: []", "goes nowhere", "version", 4},
		{head + "routes:\n  - to: [{version: 1, weight: 0}]", "goes nowhere", "above 0", 4},
		{head + "routes:\n  - to: [{version: 1, weight: -1}, {version: 2}]", "-1 is not allowed", "from 0", 4},
		{head + "routes:\n  - {name: a, to: [{version: 1}]}\n  - {name: a, to: [{version: 1}]}", `another route is called "a"`, "own", 5},
		{head + "tiers:\n  gold: {weight: 0}", "0 is not allowed", "lower band", 4},
		{head + "tiers:\n  gold:\n    limits:\n      concurrency: 0", "0 is not allowed", "leave the field out", 6},
		{head + "tiers:\n  gold:\n    limits:\n      requests_per_second: .nan", "NaN is not allowed", "", 6},
		{head + "tiers:\n  gold:\n    limits:\n      bytes_per_second: 0", "0 is not allowed", "", 6},
		{head + "tiers:\n  gold:\n    budgets:\n      - {requests: 0, per: 1h}", "0 is not allowed", "", 6},
		{head + "tokens:\n  - {issuer: 'a b', jwks: x}", `cannot be called "a b"`, "iss", 4},
		{head + "tokens:\n  - {issuer: 'a@b', jwks: x}", `cannot be called "a@b"`, "iss", 4},
		{head + "tokens:\n  - {issuer: a, jwks: x, tier: gold}\ntiers: {gold: {}}", "needs the claim", "tenant_claim", 4},
		{head + "tokens: [{issuer: a, jwks: x}]\ntenants:\n  x@a: {}", "NAME@a", "another name", 5},
		{head + "tokens: [{issuer: a, jwks: x}]\ntenants:\n  x: {issuers: [b]}", `no issuer "b"`, `"a"`, 5},
		{head + "tokens: [{issuer: a, jwks: x, tenant_claim: t}, {issuer: b, jwks: x, tenant_claim: t}]\ntenants:\n  x: {}", "several issuers could name", "issuers: [ISSUER]", 5},
		{head + "tokens: [{issuer: a, jwks: x}, {issuer: b, jwks: x}]\ntenants:\n  x: {subjects: [s]}", "several issuers could name", "issuers: []", 5},
		{head + "tenants:\n  " + strings.Repeat("x", 129) + ": {}", "129 bytes", "128", 4},
		{head + "tenants:\n  \"a\\x01\": {}", "cannot be printed", "another name", 4},
		{head + "tiers: {gold: {}, gold: {}}", `"gold" stands in line 3`, "keep one", 3},
		{head + "tennants: {}", `unknown field "tennants"`, `"tenants"`, 3},
		{head + "tenants:\n  a:\n    teir: gold", `unknown field "teir" in tenants.a`, `"tier"`, 5},
		{head + "tiers: {gold: {}}\ntenants:\n  a: {tier: golt}", `no tier "golt"`, `"gold"`, 5},
		{head + "tiers:\n  gold: {band: first}", `no band "first"`, "there are none", 4},
		{head + "tiers:\n  gold: {deadline: soon}", `"soon"`, "", 4},
		{head + "tiers:\n  gold: {weight: -1}", "-1 is not allowed", "above 0", 4},
		{head + "tiers:\n  gold: {limits: {bytes_per_second: 1XB}}", `"1XB"`, "", 4},
		{head + "tiers:\n  gold: {apis: [inferense]}", `no API "inferense"`, `"inference"`, 4},
		{head + "tiers:\n  gold: {budgets: [{requests: 1}]}", "no window", "per: 24h", 4},
		{head + "bands: [{name: a}, {name: a}]", "twice", "own", 3},
		{head + "bands: [{name: a, minimum: 60%}, {name: b, minimum: 50%}]", "110%", "lower", 3},
		{head + "tenants:\n  a:\n    keys: [{sha256: my-secret}]", "64 hexadecimal", "nereid policy key", 5},
		{head + "tenants: {anonymous: {}}", "cannot be called", "another name", 3},
		{head + "classes:\n  - name: a\n    when: elemens > 1", "undeclared reference to 'elemens'", "", 5},
		{head + "classes:\n  - name: a\n    when: elements", "gives int", "", 5},
		{head + "classes: [{name: a}, {name: a}]", "another has", "own", 3},
		{head + "routes:\n  - when: elements > 1\n    to: [{version: 1}]", "undeclared reference to 'elements'", "", 4},
		{head + "routes:\n  - to: [{}]", "names nothing", "version", 4},
		{head + "labels: {m: {stable: 1}}\nroutes:\n  - models: [m]\n    to: [{label: stabel}]", `no label "stabel"`, `"stable"`, 6},
		{head + "routes:\n  - to: [{version: 1}]\n    sticky: \"1\"", "gives int", "x-user", 5},
		{head + "tests:\n  - name: shows\n    request: {model: m}\n    expect: {refused: tenant_forbidden}", `test "shows" fails: refused is ""`, "correct", 6},
		{head + "tests:\n  - name: shows\n    request: {tenant: b}\n    expect: {}", `no tenant "b"`, "", 5},
		{head + "tests:\n  - name: shows\n    request: {model: m}\n    expect: {band: high}", `band is "default", expected "high"`, "", 6},
	} {
		p, findings := policy.Read([]byte(tt.text))
		if p != nil || len(findings) == 0 {
			t.Errorf("%q has no finding", tt.text)
			continue
		}
		f := findings[0]
		if f.Line != tt.line || !strings.Contains(f.Message, tt.message) || !strings.Contains(f.Fix, tt.fix) {
			t.Errorf("%q: line %d: %s; %s", tt.text, f.Line, f.Message, f.Fix)
		}
		if strings.Contains(f.Message+f.Fix, "my-secret") {
			t.Errorf("the secret is in %v", f)
		}
	}
}

func TestAllFindingsAreToldInTheirOrder(t *testing.T) {
	_, findings := policy.Read([]byte("version: 1\nanonymous: {tier: a}\ntenants:\n  x: {tier: b}\nclasses:\n  - name: c\n    band: d\n"))
	var lines []int
	for _, f := range findings {
		lines = append(lines, f.Line)
	}
	if diff := cmp.Diff([]int{2, 4, 7}, lines); diff != "" {
		t.Errorf("%v (-want +got):\n%s", findings, diff)
	}
}

// The work of a condition is bounded where it could be much: it does not hold then.
func TestConditionsThatCostTooMuchDoNotHold(t *testing.T) {
	p, findings := policy.Read([]byte(`
version: 1
anonymous: {}
classes:
  - {name: deep, when: 'inputs.all(a, inputs.all(b, inputs.all(c, a + b + c != "")))'}
  - {name: flat, when: 'inputs.all(a, a != "")'}
`))
	if p == nil {
		t.Fatal(findings)
	}
	many := func(n int) *policy.Request {
		return &policy.Request{Model: "m", Inputs: func(each func(string, []int64)) {
			for i := range n {
				each("input"+strconv.Itoa(i), nil)
			}
		}}
	}
	for n, want := range map[int]string{2: "deep", 300: "flat"} {
		if got := p.Classify(p.Unknown(), many(n)).Name; got != want {
			t.Errorf("%d inputs: class %q, want %q", n, got, want)
		}
	}
}

// FuzzRead looks for texts on which reading panics.
func FuzzRead(f *testing.F) {
	text, err := os.ReadFile("testdata/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("version: 1\nanonymous: &a {}\ntiers: {x: *a}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, findings := policy.Read(text); (p == nil) != (len(findings) > 0) {
			t.Errorf("a policy %v and findings %v", p != nil, findings)
		}
	})
}

func BenchmarkDecision(b *testing.B) {
	p := read(b)
	t, r := p.Tenant("acme"), &policy.Request{Model: "digits", BatchSize: 1, Elements: 64, Header: header("x-user", "7")}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.ByKey("foo", time.Time{}); err != nil {
			b.Fatal(err)
		}
		p.Route(t, r, 0)
		p.Classify(t, r)
	}
}
