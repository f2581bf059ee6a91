package tenants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// issued verifies tokens such as ISSUER.TENANT.x, and counts them.
type issued struct {
	issuers  []policy.Issuer
	expires  time.Time
	verified *int
}

func (f issued) Verify(token string) (*policy.Issuer, map[string]any, time.Time, error) {
	parts := strings.Split(token, ".")
	for i := range f.issuers {
		if f.issuers[i].Name == parts[0] {
			*f.verified++
			return &f.issuers[i], map[string]any{"tenant": parts[1], "sub": parts[1]}, f.expires, nil
		}
	}
	return nil, nil, time.Time{}, errs.New(errs.TokenInvalid, "no such issuer")
}

// under returns tenants under a policy whose tokens are ISSUER.TENANT.x.
func under(t *testing.T, text string, now func() time.Time) (all *tenants.Tenants, verified *int) {
	t.Helper()
	all, verified = tenants.New(nobody{}, now), new(int)
	put(t, all, text, verified)
	return all, verified
}

func put(t *testing.T, all *tenants.Tenants, text string, verified *int) {
	t.Helper()
	p := read(t, text)
	all.Set(p, issued{p.Issuers, time.Now().Add(24 * time.Hour), verified})
}

func token(text string) caller {
	return caller{headers: map[string]string{"authorization": "Bearer " + text + ".x"}}
}

func key(text string) caller { return caller{headers: map[string]string{"x-api-key": text}} }

const federated = `
version: 1
tiers:
  gold: {apis: [inference, model-repository], weight: 4}
  trial: {models: [demo]}
  public: {models: [demo], limits: {concurrency: 1}}
tenants:
  acme: {tier: gold, issuers: [partners], keys: [{sha256: KEY}]}
  keyed: {tier: gold, issuers: [], keys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]}
anonymous: {tier: public}
tokens:
  - {issuer: partners, jwks: x, tenant_claim: tenant, tier: gold}
  - {issuer: trials, jwks: x, tenant_claim: tenant, tier: trial}
  - {issuer: staff, jwks: x, tenant_claim: tenant}
`

// A name identifies a tenant only together with its issuer.
func TestTenantsAreWhoTheirIssuerSaysTheyAre(t *testing.T) {
	all, _ := under(t, strings.Replace(federated, "KEY", policy.Key("secret"), 1), time.Now)
	for _, tt := range []struct {
		name       string
		caller     caller
		tenant     string
		tier       string
		refusal    errs.Reason
		mayUseDemo bool
		mayUseAll  bool
	}{
		{"by a key", key("secret"), "acme", "gold", "", true, true},
		{"by the issuer that may", token("partners.acme"), "acme", "gold", "", true, true},
		{"by an issuer that may not, under its own tier", token("trials.acme"), "acme@trials", "trial", "", true, false},
		{"by an issuer that may not and has no tier", token("staff.acme"), "", "", errs.TokenInvalid, false, false},
		{"of one issuer", token("partners.new"), "new@partners", "gold", "", true, true},
		{"of another issuer, of the same name", token("trials.new"), "new@trials", "trial", "", true, false},
		{"of an issuer that has no tier for it", token("staff.new"), "", "", errs.TokenInvalid, false, false},
		{"whose name is nobody's to give", token("partners.anonymous"), "", "", errs.TokenInvalid, false, false},
		{"with a name like one of another issuer's", token("partners.new@trials"), "new@trials@partners", "gold", "", true, true},
		{"that no token is", token("partners.keyed"), "keyed@partners", "gold", "", true, true},
		{"without a name", token("partners."), "", "", errs.TokenInvalid, false, false},
		{"with a name of kilobytes", token("partners." + strings.Repeat("n", 200)), "", "", errs.TokenInvalid, false, false},
		{"that is nobody", caller{}, "anonymous", "public", "", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			who, err := all.Current().Identify(tt.caller)
			if errs.Of(err) != tt.refusal {
				t.Fatal(err)
			}
			if err != nil {
				if len(err.Error()) > 400 {
					t.Errorf("the error has %d bytes", len(err.Error()))
				}
				return
			}
			if who.Name != tt.tenant || who.Tier != tt.tier || (who.MayUse("demo") == nil) != tt.mayUseDemo || (who.MayUse("other") == nil) != tt.mayUseAll {
				t.Errorf("%q of tier %q may use demo: %v, others: %v", who.Name, who.Tier, who.MayUse("demo"), who.MayUse("other"))
			}
		})
	}
}

// An anonymous caller stays anonymous, whoever called before.
func TestNobodyGetsTheRightsOfATokenCalledAnonymous(t *testing.T) {
	all, _ := under(t, strings.Replace(federated, "KEY", policy.Key("secret"), 1), time.Now)
	if _, err := all.Current().Identify(token("partners.anonymous")); errs.Of(err) != errs.TokenInvalid {
		t.Error(err)
	}
	who, err := all.Current().Identify(caller{})
	if err != nil || who.MayCall("model-repository") == nil || who.MayUse("other") == nil {
		t.Errorf("%v: %+v", err, who)
	}
}

// Two tenants with the same name from different issuers have separate limits.
func TestIssuersTenantsHaveTheirOwnLimits(t *testing.T) {
	all, _ := under(t, `
version: 1
tiers: {user: {limits: {concurrency: 1}}}
tokens: [{issuer: a, jwks: x, tenant_claim: tenant, tier: user}, {issuer: b, jwks: x, tenant_claim: tenant, tier: user}]
`, time.Now)
	for _, who := range []string{"a.joe", "b.joe"} {
		tenant := identify(t, all, token(who))
		if _, err := reserve(t, tenant, tenants.Demand{}); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if _, err := reserve(t, identify(t, all, token(who)), tenants.Demand{}); errs.Of(err) != errs.TenantConcurrency || !strings.Contains(err.Error(), tenant.Name) {
			t.Errorf("%s, again: %v", who, err)
		}
	}
}

func identify(t *testing.T, all *tenants.Tenants, c caller) *tenants.Tenant {
	t.Helper()
	who, err := all.Current().Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	return who
}

const crowd = `
version: 1
tiers: {day: {budgets: [{requests: 2, per: 24h}], limits: {concurrency: 1}}, user: {limits: {concurrency: 1}}}
tenants: {acme: {tier: day, keys: [{sha256: KEY}]}}
anonymous: {tier: day}
tokens: [{issuer: sso, jwks: x, tenant_claim: tenant, tier: user}]
`

// However many tenants an issuer names, the tenants that the policy lists and those with requests in flight are
// remembered.
func TestACrowdOfTenantsLeavesOthersWhatTheyHaveUsed(t *testing.T) {
	all, _ := under(t, strings.Replace(crowd, "KEY", policy.Key("k"), 1), time.Now)
	listed := map[string]caller{"a listed tenant": key("k"), "nobody": {}}
	for name, c := range listed {
		r, err := reserve(t, identify(t, all, c), tenants.Demand{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r.Settle(0)
		if _, err := reserve(t, identify(t, all, c), tenants.Demand{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	busy, err := reserve(t, identify(t, all, token("sso.busy")), tenants.Demand{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_100 {
		identify(t, all, token(fmt.Sprintf("sso.user-%d", i)))
	}
	for name, c := range listed {
		if _, err := reserve(t, identify(t, all, c), tenants.Demand{}); errs.Of(err) != errs.TenantConcurrency {
			t.Errorf("%s, with a request in flight: %v", name, err)
		}
	}
	if _, err := reserve(t, identify(t, all, token("sso.busy")), tenants.Demand{}); errs.Of(err) != errs.TenantConcurrency {
		t.Errorf("a tenant with a request in flight: %v", err)
	}
	busy.Settle(0)
}

// Of the tenants that no policy lists, a bounded number is remembered: the most recently seen.
func TestTenantsThatAreNotListedAreForgottenInTime(t *testing.T) {
	all, _ := under(t, "version: 1\ntiers: {user: {budgets: [{requests: 1, per: 24h}]}}\ntokens: [{issuer: sso, jwks: x, tenant_claim: tenant, tier: user}]", time.Now)
	use := func(name string) error {
		r, err := reserve(t, identify(t, all, token("sso."+name)), tenants.Demand{})
		r.Settle(0)
		return err
	}
	for _, name := range []string{"first", "second"} {
		if err := use(name); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 9_998 {
		identify(t, all, token(fmt.Sprintf("sso.user-%d", i)))
	}
	if err := use("first"); errs.Of(err) != errs.QuotaExceeded {
		t.Errorf("the first of 10,000: %v", err)
	}
	identify(t, all, token("sso.one-more"))
	if err := use("first"); errs.Of(err) != errs.QuotaExceeded {
		t.Errorf("one that was seen again: %v", err)
	}
	if err := use("second"); err != nil {
		t.Errorf("the one of 10,001 that was seen longest ago is remembered: %v", err)
	}
}

// A tenant that one policy drops and the next one lists again keeps its past use.
func TestTenantsThatComeAgainHaveUsedWhatTheyHaveUsed(t *testing.T) {
	with := strings.Replace(crowd, "KEY", policy.Key("k"), 1)
	all, verified := under(t, with, time.Now)
	for range 2 {
		r, err := reserve(t, identify(t, all, key("k")), tenants.Demand{})
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(0)
	}
	put(t, all, strings.Replace(with, "tenants: {acme", "tenants: {other", 1), verified)
	if r, err := reserve(t, identify(t, all, key("k")), tenants.Demand{}); err != nil {
		t.Errorf("another tenant: %v", err)
	} else {
		r.Settle(0)
	}
	put(t, all, with, verified)
	if _, err := reserve(t, identify(t, all, key("k")), tenants.Demand{}); errs.Of(err) != errs.QuotaExceeded {
		t.Errorf("a budget that was used up: %v", err)
	}
}

// A call that started under an earlier policy does not bring back that policy's limits.
func TestAnEarlierPolicysCallsLeaveTheLimitsOfTheLaterOne(t *testing.T) {
	text := func(n string) string {
		return "version: 1\ntiers: {user: {limits: {concurrency: " + n + "}}}\ntokens: [{issuer: sso, jwks: x, tenant_claim: tenant, tier: user}]"
	}
	all, verified := under(t, text("9"), time.Now)
	before := all.Current()
	put(t, all, text("1"), verified)
	if _, err := reserve(t, identify(t, all, token("sso.joe")), tenants.Demand{}); err != nil {
		t.Fatal(err)
	}
	late, err := before.Identify(token("sso.joe"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(t, late, tenants.Demand{}); errs.Of(err) != errs.TenantConcurrency {
		t.Errorf("under the limits of before: %v", err)
	}
}

// A verified token is cached for a while, but only for the policy that verified it.
func TestTokensAreRememberedForAWhile(t *testing.T) {
	now := time.Now()
	all, verified := under(t, strings.Replace(crowd, "KEY", policy.Key("k"), 1), func() time.Time { return now })
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Minute, 1}, {3 * time.Minute, 1}, {2 * time.Minute, 2}, {time.Second, 2}, {25 * time.Hour, 3}, {0, 4}} {
		now = now.Add(tt.after)
		identify(t, all, token("sso.joe"))
		if *verified != tt.want {
			t.Errorf("after %v more: verified %d times, want %d", tt.after, *verified, tt.want)
		}
	}
	put(t, all, crowdOf("other"), verified)
	if _, err := all.Current().Identify(token("sso.joe")); errs.Of(err) != errs.TokenInvalid {
		t.Errorf("a token of an issuer that the policy has no more: %v", err)
	}
}

func crowdOf(issuer string) string {
	return "version: 1\ntiers: {user: {}}\ntokens: [{issuer: " + issuer + ", jwks: x, tenant_claim: tenant, tier: user}]"
}

func TestShadowPoliciesServeCallersThatTheyWouldRefuse(t *testing.T) {
	all, _ := under(t, "shadow: true\n"+strings.TrimSpace(crowdOf("sso")), time.Now)
	who := identify(t, all, caller{})
	if who.Name != policy.AnonymousName || who.MayUse("any") != nil || who.Refuse(errs.New(errs.TenantForbidden, "no")) != nil {
		t.Errorf("%+v", who)
	}
}

func TestAttemptsAreRecognized(t *testing.T) {
	for _, tt := range []struct {
		header, value string
		want          bool
	}{
		{"grpc-previous-rpc-attempts", "1", true},
		{"grpc-previous-rpc-attempts", "0", false},
		{"grpc-previous-rpc-attempts", "", false},
		{"x-envoy-attempt-count", "2", true},
		{"x-envoy-attempt-count", "1", false},
		{"x-envoy-attempt-count", "0", false},
		{"x-other", "2", false},
	} {
		if got := tenants.Attempts(caller{headers: map[string]string{tt.header: tt.value}}); got != tt.want {
			t.Errorf("%s: %q: %v", tt.header, tt.value, got)
		}
	}
}
