package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/policy"
)

// Where a route goes is checked when the policy is read: each mistake is one finding that names its
// place and the way out.
func TestTargetsOfRoutesAreChecked(t *testing.T) {
	for target, want := range map[string]string{ // the start of each finding
		`version: 1`:                      ``,
		`version: 1, weight: 0.5`:         ``,
		`version: 1, weight: 1e-9`:        ``,
		`label: stable`:                   ``,
		`model: n, label: other`:          ``,
		`model: n`:                        ``,
		`weight: 1`:                       `routes[0].to[0]: the target names nothing (write  version: N,  label: NAME  or  model: NAME)`,
		`version: 1, label: stable`:       `routes[0].to[0]: the target has a version and a label (keep one of the two)`,
		`version: -1`:                     `routes[0].to[0].version: there is no version -1 (versions are positive numbers)`,
		`version: 1, weight: -0.1`:        `routes[0].to[0].weight: -0.1 is not allowed here (give a number from 0 on); routes[0].to: the route goes nowhere (write  to: [{version: N}], with a weight above 0)`,
		`version: 1, weight: 1e300`:       `routes[0].to[0].weight: 1e+300 is not allowed here (give a number from 0 on)`,
		`version: 1, weight: .nan`:        `routes[0].to[0].weight: NaN is not allowed here (give a number from 0 on); routes[0].to: the route goes nowhere (write  to: [{version: N}], with a weight above 0)`,
		`version: 1, weight: 0`:           `routes[0].to: the route goes nowhere (write  to: [{version: N}], with a weight above 0)`,
		`label: stabel`:                   `routes[0].to[0].label: model "m" has no label "stabel" (did you mean "stable"?)`,
		`model: n, label: stable`:         `routes[0].to[0].label: model "n" has no label "stable" (there are other)`,
		`model: unlabeled, label: stable`: `routes[0].to[0].label: model "unlabeled" has no label "stable" (there are none)`,
		`label: entirely-different`:       `routes[0].to[0].label: model "m" has no label "entirely-different" (there are canary, stable)`,
	} {
		_, findings := policy.Read([]byte("version: 1\nanonymous: {}\nlabels: {m: {stable: 3, canary: 4}, n: {other: 1}}\nroutes:\n  - {models: [m], to: [{" + target + "}]}\n"))
		var got []string
		for _, f := range findings {
			got = append(got, fmt.Sprintf("%s: %s (%s)", f.Field, f.Message, f.Fix))
		}
		if strings.Join(got, "; ") != want {
			t.Errorf("%s:\n got %s\nwant %s", target, strings.Join(got, "; "), want)
		}
	}
}

// A name that is not known gets the nearest one that is, or the first of those that there are.
func TestUnknownNamesGetASuggestion(t *testing.T) {
	many := func(n int) (names string) {
		for i := range n {
			names += fmt.Sprintf("tier-number-%02d: {}, ", i)
		}
		return names
	}
	list := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("tier-number-%02d", i))
		}
		return names
	}
	for name, c := range map[string]struct{ tiers, asked, want string }{
		"one letter is wrong":       {"gold: {}, silver: {}", "gould", `did you mean "gold"?`},
		"two of a short name are":   {"gold: {}", "gilt", `did you mean "gold"?`},
		"three of a short name are": {"gold: {}", "moat", "there are gold"},
		"a third of a long name is": {"interactive: {}", "interoctavo", `did you mean "interactive"?`},
		"the nearest of two":        {"gold: {}, golden: {}", "goldem", `did you mean "golden"?`},
		"nothing is near":           {"gold: {}, silver: {}", "standard", "there are gold, silver"},
		"as many as are listed":     {many(20), "x", "there are " + strings.Join(list(20), ", ")},
		"more than are listed":      {many(21), "x", "there are " + strings.Join(list(20), ", ") + ", …"},
	} {
		_, findings := policy.Read([]byte("version: 1\ntiers: {" + c.tiers + "}\ntenants: {a: {tier: " + c.asked + "}}\n"))
		found := false
		for _, f := range findings {
			found = found || f.Field == "tenants.a.tier" && f.Fix == c.want
		}
		if !found {
			t.Errorf("%s: %+v, want %s", name, findings, c.want)
		}
	}
}
