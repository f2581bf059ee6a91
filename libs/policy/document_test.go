package policy_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/policy"
)

// tier reads a policy with one tier, of which the anonymous tenant is.
func tier(fields string) (*policy.Tenant, []policy.Finding) {
	p, findings := policy.Read([]byte("version: 1\nbands: [{name: high}, {name: low}]\ntiers: {t: {" + fields + "}}\nanonymous: {tier: t}"))
	if p == nil {
		return nil, findings
	}
	tenant, err := p.Anonymous()
	if err != nil {
		return nil, []policy.Finding{{Message: err.Error()}}
	}
	return tenant, nil
}

func TestLimitsAreReadWithTheirUnits(t *testing.T) {
	tenant, findings := tier(`
  weight: 2.5, band: high, deadline: 250ms, models: [m], apis: [inference],
  limits: {requests_per_second: 0.5, cost_units_per_second: 1e3, bytes_per_second: 1.5MiB, burst: 1m30s, concurrency: 7, memory: 2GB},
  budgets: [{requests: 10, per: 1h}, {cost_units: 2.5, per: 24h}]`)
	if findings != nil {
		t.Fatal(findings)
	}
	want := policy.Limits{Requests: 0.5, CostUnits: 1000, Bytes: 1.5 * (1 << 20), Burst: 90 * time.Second, Concurrency: 7, Memory: 2e9}
	if diff := cmp.Diff(want, tenant.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]policy.Budget{{Requests: 10, Per: time.Hour}, {CostUnits: 2.5, Per: 24 * time.Hour}}, tenant.Budgets); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
	if tenant.Weight != 2.5 || tenant.Band() != 0 || fmt.Sprint(tenant.Models(), tenant.APIs()) != "[m] [inference]" {
		t.Errorf("weight %v, band %d, models %v, APIs %v", tenant.Weight, tenant.Band(), tenant.Models(), tenant.APIs())
	}
}

func TestATierThatSaysNothingHasNoBounds(t *testing.T) {
	tenant, findings := tier("")
	if findings != nil {
		t.Fatal(findings)
	}
	if diff := cmp.Diff(policy.Limits{Burst: time.Second}, tenant.Limits); diff != "" || tenant.Budgets != nil || tenant.Models() != nil {
		t.Errorf("%+v (-want +got):\n%s", tenant, diff)
	}
	if tenant.Weight != 1 || tenant.Band() != 1 {
		t.Errorf("weight %v, band %d", tenant.Weight, tenant.Band())
	}
	for _, api := range []string{"model-repository", "shared-memory", "trace", "logging", "recording"} {
		if tenant.MayCall(api) == nil {
			t.Errorf("%s is open by default", api)
		}
	}
}

// Unless its tier says so, nothing that a tenant has sent stands in a recording but shapes.
func TestRecordingsHaveShapesByDefault(t *testing.T) {
	for text, want := range map[string]policy.Recording{
		"": policy.RecordShapes, "recording: shapes": policy.RecordShapes, "recording: contents": policy.RecordContents, "recording: nothing": policy.RecordNothing,
	} {
		if tenant, findings := tier(text); findings != nil || tenant.Recording != want {
			t.Errorf("%q: %q, %v", text, tenant.Recording, findings)
		}
	}
	for _, text := range []string{"recording: all", "recording: Contents", "recording: [contents]", "recording: true"} {
		if tenant, findings := tier(text); len(findings) == 0 {
			t.Errorf("%q is taken as %q", text, tenant.Recording)
		}
	}
	p, findings := policy.Read([]byte("version: 1\ntenants: {free: {}}\nanonymous: {}\n"))
	if findings != nil || p.Tenant("free").Recording != policy.RecordShapes {
		t.Errorf("without a tier: %v", findings)
	}
}

// Numbers that are none, or that would be a bound of nothing or of everything, are findings.
func TestNumbersThatAreNoBounds(t *testing.T) {
	for _, field := range []string{
		"weight: %s", "limits: {requests_per_second: %s}", "limits: {cost_units_per_second: %s}", "limits: {bytes_per_second: %s}",
		"limits: {concurrency: %s}", "limits: {memory: %s}", "budgets: [{requests: %s, per: 1h}]", "budgets: [{cost_units: %s, per: 1h}]",
	} {
		for _, number := range []string{"0", "-1", "-0", "-0.0", ".nan", ".inf", "-.inf", "1e400", "1e16", "99999999999999999999999", "x", "[1]", "{}", "true", "''", "0x", "~"} {
			text := fmt.Sprintf(field, number)
			if tenant, findings := tier(text); len(findings) == 0 {
				t.Errorf("%s is %+v", text, tenant.Limits)
			}
		}
	}
}

func TestSizesAndSpansAndSharesAndDays(t *testing.T) {
	for field, values := range map[string]struct{ good, bad []string }{
		"limits: {memory: %s}": {
			[]string{"1", "1B", "1 KiB", "0.5MiB", "3GiB", "2TiB", "7kB", "7KB", "7MB", "7GB", "7TB"},
			[]string{"1XB", "MiB", "1MiBs", "-1MiB", "nanMiB", "infB", "1e30TiB", "1,5MiB"},
		},
		"limits: {burst: %s}": {[]string{"1ns", "250ms", "1h30m"}, []string{"1", "0s", "-1s", "1d", "soon", "99999999999h"}},
		"deadline: %s":        {[]string{"1ms"}, []string{"0s", "-5ms", "1"}},
	} {
		for _, v := range values.good {
			if _, findings := tier(fmt.Sprintf(field, v)); findings != nil {
				t.Errorf(field+": %v", v, findings)
			}
		}
		for _, v := range values.bad {
			if _, findings := tier(fmt.Sprintf(field, v)); findings == nil {
				t.Errorf(field+" has no finding", v)
			}
		}
	}
	for _, v := range []string{"101%", "-1%", "1.01", "nan", "%", "5 %%", "x"} {
		if p, _ := policy.Read([]byte("version: 1\nanonymous: {}\nretries: {budget: " + v + "}")); p != nil {
			t.Errorf("a share of %s is %v", v, p.RetryBudget)
		}
	}
	for v, want := range map[string]float64{"0": 0, "0%": 0, "5%": 0.05, "0.05": 0.05, "100%": 1, "1": 1, "12.5%": 0.125} {
		p, findings := policy.Read([]byte("version: 1\nanonymous: {}\nretries: {budget: " + v + "}"))
		if p == nil || math.Abs(p.RetryBudget-want) > 1e-12 {
			t.Errorf("a share of %s: %v", v, findings)
		}
	}
	for _, v := range []string{"2030-02-30", "30-01-01", "2030-01-01T00:00:00Z", "tomorrow", "0"} {
		if p, _ := policy.Read([]byte("version: 1\ntenants: {a: {keys: [{sha256: " + policy.Key("k") + ", expires: " + v + "}]}}")); p != nil {
			t.Errorf("%s is a day", v)
		}
	}
}

func TestSizesAreTheirNumberTimesTheirUnit(t *testing.T) {
	units := map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9}
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]string{"", "B", "KiB", "MiB", "GiB", "kB", "KB", "MB", "GB"}).Draw(t, "unit")
		n := rapid.Int64Range(1, 9_999).Draw(t, "n")
		space := rapid.SampledFrom([]string{"", " "}).Draw(t, "space")
		tenant, findings := tier(fmt.Sprintf("limits: {memory: %d%s%s}", n, space, unit))
		if findings != nil {
			t.Fatal(findings)
		}
		if want := int64(float64(n) * units[unit]); tenant.Limits.Memory != want {
			t.Fatalf("%d %s are %d bytes, want %d", n, unit, tenant.Limits.Memory, want)
		}
	})
}

// Bands' minimum shares are shares of the same devices.
func TestBands(t *testing.T) {
	read := func(bands string) (*policy.Policy, []policy.Finding) {
		return policy.Read([]byte("version: 1\nanonymous: {}\nbands: [" + bands + "]"))
	}
	p, findings := read("{name: a, minimum: 50%}, {name: b}, {name: c, minimum: 0.5}")
	if p == nil {
		t.Fatal(findings)
	}
	if diff := cmp.Diff([]policy.Band{{"a", 0.5}, {"b", 0}, {"c", 0.5}}, p.Bands); diff != "" {
		t.Error(diff)
	}
	var many []string
	for i := range policy.MaxBands + 1 {
		many = append(many, fmt.Sprintf("{name: b%d}", i))
	}
	for bands, message := range map[string]string{
		strings.Join(many, ","):                         "17 bands",
		"{minimum: 5%}":                                 "no name",
		"{name: a, minimum: -1%}":                       "share",
		"{name: a, minimum: .nan}":                      "share",
		"{name: a, minimum: 1}, {name: b, minimum: 1%}": "101%",
	} {
		if _, findings := read(bands); len(findings) == 0 || !strings.Contains(findings[0].Message, message) {
			t.Errorf("%s: %v, want %q", bands, findings, message)
		}
	}
	if p, findings := read(strings.Join(many[1:], ",")); p == nil {
		t.Error(findings)
	}
}
