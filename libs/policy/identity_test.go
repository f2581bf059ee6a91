package policy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

const claiming = `
version: 1
tiers: {gold: {weight: 4}, trial: {models: [demo]}}
tenants:
  acme: {tier: gold, issuers: [partners]}
  listed: {tier: gold, issuers: []}
tokens:
  - {issuer: partners, jwks: x, tenant_claim: org, tier: trial}
  - {issuer: strict, jwks: x, tenant_claim: org}
`

func claimed(t testing.TB) *policy.Policy {
	t.Helper()
	p, findings := policy.Read([]byte(claiming))
	if p == nil {
		t.Fatal(findings)
	}
	return p
}

func TestClaimsOfOtherTypesNameNobody(t *testing.T) {
	p := claimed(t)
	for _, claim := range []any{nil, "", 7, 7.5, true, []any{"acme"}, map[string]any{"acme": 1}, json.Number("7"), []string{"acme"}, "anonymous", "a\x00b", "\xff", strings.Repeat("x", 129), "a\nb"} {
		for i := range p.Issuers {
			tenant, err := p.ByToken(&p.Issuers[i], map[string]any{"org": claim, "sub": "acme"})
			if errs.Of(err) != errs.TokenInvalid || tenant != nil {
				t.Errorf("the claim %.20v of %s names %v, %v", claim, p.Issuers[i].Name, tenant, err)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error repeats %d bytes", len(err.Error()))
			}
		}
	}
	if _, err := p.ByToken(&p.Issuers[0], nil); errs.Of(err) != errs.TokenInvalid {
		t.Error(err)
	}
}

// Whatever a token says: its tenant is one that the policy lets its issuer name, or one that
// carries the issuer's name and has its tier.
func TestTokensNameTenantsOfTheirIssuer(t *testing.T) {
	p := claimed(t)
	check := func(t interface{ Errorf(string, ...any) }, name string) {
		for i := range p.Issuers {
			by := &p.Issuers[i]
			tenant, err := p.ByToken(by, map[string]any{"org": name})
			switch {
			case err != nil:
				if errs.Of(err) != errs.TokenInvalid || by.Name == "partners" && name == "acme" {
					t.Errorf("%q of %s: %v", name, by.Name, err)
				}
			case tenant.Name == "acme":
				if by.Name != "partners" || name != "acme" || tenant.Tier != "gold" {
					t.Errorf("%q of %s is acme", name, by.Name)
				}
			case by.Name != "partners" || tenant.Name != name+"@partners" || tenant.Tier != "trial" || tenant.MayUse("secret") == nil:
				t.Errorf("%q of %s is %q of the tier %q", name, by.Name, tenant.Name, tenant.Tier)
			}
		}
	}
	for _, name := range []string{"acme", "listed", "acme@partners", "@partners", "@", "acme@", " acme", "acme ", "ACME", "acme\u200b"} {
		check(t, name)
	}
	rapid.Check(t, func(t *rapid.T) { check(t, rapid.StringN(0, 40, 200).Draw(t, "name")) })
}

func TestKeysAreComparedWhole(t *testing.T) {
	p, findings := policy.Read([]byte("version: 1\ntenants: {a: {keys: [{name: ci, sha256: " + policy.Key("secret") + ", expires: 2030-01-31}, {sha256: " + policy.Key("other") + "}]}}"))
	if p == nil {
		t.Fatal(findings)
	}
	day := time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)
	for _, key := range []string{"", "secre", "secret ", "Secret", policy.Key("secret"), "secret\x00"} {
		if tenant, err := p.ByKey(key, day.Add(-time.Hour)); tenant != nil || errs.Of(err) != errs.TokenInvalid || key != "" && strings.Contains(err.Error(), key) {
			t.Errorf("%q is the key of %v: %v", key, tenant, err)
		}
	}
	if tenant, err := p.ByKey("secret", day.Add(-time.Nanosecond)); err != nil || tenant.Name != "a" {
		t.Error(err)
	}
	if _, err := p.ByKey("secret", day); errs.Of(err) != errs.TokenInvalid || !strings.Contains(err.Error(), `"ci" has expired on 2030-01-31`) {
		t.Error(err)
	}
	if _, err := p.ByKey("other", day.AddDate(100, 0, 0)); err != nil {
		t.Errorf("a key without an end: %v", err)
	}
}

func TestKeysThatCannotBe(t *testing.T) {
	sum := policy.Key("k")
	for keys, message := range map[string]string{
		"[{sha256: " + strings.ToUpper(sum) + "}]":       "lower case",
		"[{sha256: " + sum[:62] + "}]":                   "64 hexadecimal",
		"[{sha256: " + sum + "00}]":                      "64 hexadecimal",
		"[{sha256: " + sum + "}, {sha256: " + sum + "}]": `that of tenant "a", too`,
		"[{sha256: " + sum + ", expires: 2030-13-01}]":   "want a day",
		"[{sha256: '" + strings.Repeat("g", 64) + "'}]":  "64 hexadecimal",
		"[{sha256: " + sum + ", sha512: x}]":             `unknown field "sha512"`,
		"[" + sum + "]":                                  "must be fields",
		"{sha256: " + sum + "}":                          "must be a list",
	} {
		_, findings := policy.Read([]byte("version: 1\ntenants: {a: {keys: " + keys + "}}"))
		if len(findings) == 0 || !strings.Contains(fmt.Sprint(findings), message) {
			t.Errorf("%s: %v, want %q", keys, findings, message)
		}
	}
}

func TestCallersWithoutCredentials(t *testing.T) {
	open, findings := policy.Read([]byte("version: 1\nanonymous: {tier: t}\ntiers: {t: {models: [m]}}\ntenants: {b: {}, a: {}}"))
	if open == nil {
		t.Fatal(findings)
	}
	who, err := open.Anonymous()
	if err != nil || who.Name != policy.AnonymousName || open.Unknown() != who || who.MayUse("secret") == nil {
		t.Errorf("%v, %v", who, err)
	}
	if err := who.MayCall("trace"); errs.Of(err) != errs.TenantForbidden || !strings.Contains(err.Error(), "send an API key") {
		t.Error(err)
	}
	var names []string
	for _, tenant := range open.Tenants() {
		names = append(names, tenant.Name)
	}
	if diff := cmp.Diff([]string{"a", "b", policy.AnonymousName}, names); diff != "" {
		t.Error(diff)
	}
	shut := claimed(t)
	if _, err := shut.Anonymous(); errs.Of(err) != errs.TokenMissing {
		t.Error(err)
	}
	if unknown := shut.Unknown(); unknown.MayUse("any") != nil || unknown.Weight != 1 { // in shadow mode
		t.Errorf("%+v", unknown)
	}
	for _, api := range policy.APIs() {
		if err := shut.Unknown().MayCall(api); err != nil {
			t.Error(err)
		}
	}
}

func TestCertificatesAreTriedInTheirOrder(t *testing.T) {
	p, findings := policy.Read([]byte("version: 1\ntenants: {a: {certificates: [web.a, 'spiffe://a/*']}, b: {certificates: ['*.b']}}"))
	if p == nil {
		t.Fatal(findings)
	}
	for names, want := range map[string]string{"web.a": "a", "x, web.b": "b", "web.a, web.b": "a", "spiffe://a/x": "a", "spiffe://b/spiffe://a/x": "", "web.a.evil": "", "": "", "WEB.A": ""} {
		got := ""
		if tenant := p.ByCertificate(strings.Split(names, ", ")); tenant != nil {
			got = tenant.Name
		}
		if got != want {
			t.Errorf("%q is of %q, want %q", names, got, want)
		}
	}
	if p.ByCertificate(nil) != nil {
		t.Error("no certificate is somebody's")
	}
}

// The tests that a policy brings say where it does not do what they expect.
func TestPoliciesTestThemselves(t *testing.T) {
	const rules = `
version: 1
bands: [{name: high}, {name: low}]
tiers: {t: {models: [m, n], deadline: 2s}}
tenants: {acme: {tier: t}}
labels: {m: {stable: 4}}
classes: [{name: big, when: "elements >= 12 && bytes > 5 && rows == 3 && priority == 9 && headers['x-a'] == 'b'", band: high, deadline: 1s}]
routes: [{models: [n], to: [{model: m, label: stable}]}]
tests:
  - {name: shows, request: {tenant: acme, model: REQUEST}, expect: {EXPECT}}
`
	const big = "n, headers: {x-a: b}, inputs: {X: [3, 4]}, bytes: 6, priority: 9"
	for _, tt := range []struct{ request, expect, finding string }{
		{big, "class: big, band: high, deadline: 1s, model: m, version: 4", ""},
		{big, "", ""},
		{big, "class: small", `class is "big", expected "small"`},
		{big, "band: low", `band is "high", expected "low"`},
		{big, "deadline: 2s", `deadline is "1s", expected "2s"`},
		{big, "model: n", `model is "m", expected "n"`},
		{big, "version: 5", `version is "4", expected "5"`},
		{big, "refused: tenant_forbidden", `refused is "", expected "tenant_forbidden"`},
		{"m, version: stable", "version: 4, deadline: 2s, band: low", ""},
		{"m, api: trace", "refused: tenant_forbidden", ""},
		{"m, api: trace", "class: big", `refused is "tenant_forbidden", expected ""`},
		{"x", "refused: tenant_forbidden", ""},
		{"m, tenant: acme", "", "stands in line"},
	} {
		p, findings := policy.Read([]byte(strings.NewReplacer("REQUEST", tt.request, "EXPECT", tt.expect).Replace(rules)))
		if tt.finding == "" && (p == nil || !slices.Equal(p.Tests, []string{"shows"})) || tt.finding != "" && !strings.Contains(fmt.Sprint(findings), tt.finding) {
			t.Errorf("%s: %s: %v, want %q", tt.request, tt.expect, findings, tt.finding)
		}
	}
}

// The schema for editors has every field that Read knows, and none else.
func TestTheSchemaIsThatOfTheExample(t *testing.T) {
	made, err := policy.Schema()
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(filepath.Join("..", "..", "examples", "policy", "policy.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(example)), strings.TrimSpace(string(made))); diff != "" {
		t.Errorf("write it again, with nereid policy schema (-there +made):\n%s", diff)
	}
	var root struct {
		Properties map[string]struct{ Description string }
		Required   []string
	}
	if err := json.Unmarshal(made, &root); err != nil {
		t.Fatal(err)
	}
	for name, is := range root.Properties {
		if _, findings := policy.Read([]byte("version: 1\nanonymous: {}\n" + name + ": ~")); strings.Contains(fmt.Sprint(findings), "unknown field") || is.Description == "" {
			t.Errorf("the field %s, %q: %v", name, is.Description, findings)
		}
	}
	if !slices.Equal(root.Required, []string{"version"}) || len(root.Properties) != 12 {
		t.Errorf("%d fields, required are %v", len(root.Properties), root.Required)
	}
}
