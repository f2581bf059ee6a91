package policy_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

const inheriting = `
version: 1
shadow: true
bands: [{name: high}, {name: low}]
tiers:
  gold: {weight: 4, band: high, deadline: 2s, models: [a, b], apis: [inference, trace], limits: {concurrency: 3, requests_per_second: 9}}
tenants:
  heir: {tier: gold}
  other: {tier: gold, models: ["*"], apis: [metadata]}
  bare: {}
classes:
  - {name: quick, tenants: ["h*", bare], models: [a], deadline: 1s}
  - {name: slow, tiers: [gold], band: low}
  - {name: rest, tiers: ["g*"]}
`

func TestTenantsHaveWhatTheirTierHas(t *testing.T) {
	p, findings := policy.Read([]byte(inheriting))
	if p == nil {
		t.Fatal(findings)
	}
	type is struct {
		Tier, Models, APIs string
		Weight             float64
		Band, Concurrency  int
	}
	for name, want := range map[string]is{
		"heir":  {"gold", "[a b]", "[inference trace]", 4, 0, 3},
		"other": {"gold", "[*]", "[metadata]", 4, 0, 3},
		"bare":  {"", "[]", "[health metadata inference model-config statistics explain]", 1, 1, 0},
	} {
		tenant := p.Tenant(name)
		got := is{tenant.Tier, fmt.Sprint(tenant.Models()), fmt.Sprint(tenant.APIs()), tenant.Weight, tenant.Band(), tenant.Limits.Concurrency}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if !p.Shadow || p.RetryBudget >= 0 {
		t.Errorf("shadow %v, %v of retries", p.Shadow, p.RetryBudget)
	}
}

func TestClassesGiveBandsAndDeadlines(t *testing.T) {
	p, findings := policy.Read([]byte(inheriting))
	if p == nil {
		t.Fatal(findings)
	}
	for _, tt := range []struct {
		tenant, model string
		want          policy.Class
	}{
		{"heir", "a", policy.Class{Name: "quick", Band: 0, Deadline: time.Second}},     // the tier's band
		{"heir", "b", policy.Class{Name: "slow", Band: 1, Deadline: 2 * time.Second}},  // the tier's deadline
		{"other", "a", policy.Class{Name: "slow", Band: 1, Deadline: 2 * time.Second}}, // no pattern of tenants
		{"bare", "a", policy.Class{Name: "quick", Band: 1, Deadline: time.Second}},     // no tier
		{"bare", "b", policy.Class{Band: 1}},                                           // no class
	} {
		if got := p.Classify(p.Tenant(tt.tenant), &policy.Request{Model: tt.model}); got != tt.want {
			t.Errorf("%s for %s: %+v, want %+v", tt.tenant, tt.model, got, tt.want)
		}
	}
}

// What a tenant may is not shared with others of its tier.
func TestTenantsOfATierAreApart(t *testing.T) {
	p, findings := policy.Read([]byte(inheriting))
	if p == nil {
		t.Fatal(findings)
	}
	if err := p.Tenant("heir").MayUse("c"); errs.Of(err) != errs.TenantForbidden || errs.From(err).Model != "c" {
		t.Errorf("heir, whose tier has two models: %v", err)
	}
	if err := p.Tenant("other").MayUse("c"); err != nil {
		t.Errorf("other, which has all: %v", err)
	}
	if err := p.Tenant("other").MayCall("inference"); errs.Of(err) != errs.TenantForbidden || !strings.Contains(err.Error(), "tenant 'other' may not call the API inference") {
		t.Error(err)
	}
	if err := p.Tenant("heir").MayCall(""); errs.Of(err) != errs.TenantForbidden {
		t.Errorf("a call of no API: %v", err)
	}
}

// More of what is wrong, that the table beside it leaves out.
func TestFindingsOfSections(t *testing.T) {
	const head = "version: 1\nanonymous: {}\n"
	for _, tt := range []struct{ text, message, fix string }{
		{head + "tiers: {t: {budgets: [{per: 1h}]}}", "bounds nothing", "requests: N"},
		{head + "tiers: {t: {budgets: [{requests: 1, per: 0s}]}}", "time span", ""},
		{head + "tokens: [{issuer: a, jwks: x}, {issuer: a, jwks: y}]", `"a" is there twice`, "merge"},
		{head + "tokens: [{issuer: a}]", "not complete", "jwks"},
		{head + "tokens: [{jwks: x}]", "not complete", "issuer"},
		{head + "tokens: [{issuer: " + strings.Repeat("i", 201) + ", jwks: x}]", "cannot be called", "iss"},
		{head + "tokens: [{issuer: a, jwks: x, tenant_claim: t, tier: gold}]\ntiers: {gild: {}}", `no tier "gold"`, `"gild"`},
		{head + "classes: [{name: a, tiers: [gold]}]\ntiers: {gild: {}}", `no tier "gold"`, `"gild"`},
		{head + "classes: [{name: a, tenants: [acne]}]\ntenants: {acme: {}}", `no tenant "acne"`, `"acme"`},
		{head + "classes: [{}]", "no name", "own"},
		{head + "classes: [{name: a, band: b}]", `no band "b"`, "there are none"},
		{head + "classes: [{name: a, deadline: -1s}]", "time span", ""},
		{head + "anonymous: {tier: t}", `"anonymous" stands in line 2`, "keep one"},
		{"version: 1\nanonymous: {tier: t}", `no tier "t"`, "there are none"},
		{"version: 1\nanonymous: {models: [m]}", `unknown field "models" in anonymous`, "tier"},
		{head + "retries: {}\nshadow: 1", `got "1"`, ""},
		{head + "labels: {m: {stable: x}}", "whole number", ""},
		{head + "labels: {m: [1]}", "names and what they stand for", ""},
		{head + "labels: m", "names and what they stand for", ""},
		{"version: one", "whole number", ""},
		{"version: 1.0\nanonymous: {}", "whole number", ""},
		{"version: [1]", "must be a value", ""},
		{"'version': 1\nanonymous: {}\n\"tiers\": x", "names and what they stand for", ""},
	} {
		p, findings := policy.Read([]byte(tt.text))
		if p != nil || !slices.ContainsFunc(findings, func(f policy.Finding) bool {
			return strings.Contains(f.Message, tt.message) && strings.Contains(f.Fix, tt.fix)
		}) {
			t.Errorf("%q: %v, want %q, %q", tt.text, findings, tt.message, tt.fix)
		}
	}
	// With issuers a condition may name tenants that only tokens know.
	if p, findings := policy.Read([]byte(head + "tokens: [{issuer: a, jwks: x, tenant_claim: t, tier: gold}]\ntiers: {gold: {}}\nclasses: [{name: a, tenants: [joe@a]}]")); p == nil {
		t.Error(findings)
	}
}

// decisions are what a policy says of requests, as a text.
func decisions(p *policy.Policy) string {
	var b strings.Builder
	for _, tenant := range p.Tenants() {
		for _, model := range []string{"digits", "text_old", "text_new", "private"} {
			for _, h := range []string{"", "x-urgent", "x-canary"} {
				r := &policy.Request{Model: model, BatchSize: 4, Elements: 20_000, Header: header(h, "1")}
				got := p.Explain(tenant, "inference", r)
				fmt.Fprintf(&b, "%s %s %s: %s %v %v\n", tenant.Name, model, h, got.Refused, got.Target, got.Class)
			}
		}
	}
	return b.String()
}

// What a policy says does not hang on the order of its sections.
func TestTheOrderOfSectionsMeansNothing(t *testing.T) {
	text, err := os.ReadFile("testdata/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := decisions(read(t))
	var sections []string
	for _, line := range strings.SplitAfter(string(text), "\n") {
		if line != "" && !strings.ContainsAny(line[:1], " \n") {
			sections = append(sections, "")
		}
		sections[len(sections)-1] += line
	}
	rapid.Check(t, func(t *rapid.T) {
		shuffled := rapid.Permutation(sections).Draw(t, "sections")
		p, findings := policy.Read([]byte(strings.Join(shuffled, "\n")))
		if p == nil {
			t.Fatal(findings)
		}
		if diff := cmp.Diff(want, decisions(p)); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzTenantNames looks for names of tenants, as tokens bring them, by which one becomes
// another.
func FuzzTenantNames(f *testing.F) {
	for _, name := range []string{"acme", "listed", "anonymous", "", "acme@partners", "a\x00", "\xff", strings.Repeat("x", 128)} {
		f.Add(name)
	}
	p := claimed(f)
	f.Fuzz(func(t *testing.T, name string) {
		tenant, err := p.ByToken(&p.Issuers[0], map[string]any{"org": name})
		if err != nil {
			if errs.Of(err) != errs.TokenInvalid || tenant != nil {
				t.Errorf("%q: %v, %v", name, tenant, err)
			}
			return
		}
		if listed := name == "acme" && tenant == p.Tenant("acme"); !listed && tenant.Name != name+"@partners" || tenant.Name == policy.AnonymousName || len(tenant.Name) > 128+1+len("partners") {
			t.Errorf("%q is %q", name, tenant.Name)
		}
	})
}
