package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/policy"
)

// routing reads a policy of routes, in which callers without credentials are served.
func routing(t interface{ Fatal(...any) }, routes string) func(r *policy.Request, draw float64) policy.Target {
	p, findings := policy.Read([]byte("version: 1\nanonymous: {}\nlabels: {m: {stable: 1, next: 2}, other: {stable: 7}}\nroutes: [" + routes + "]"))
	if p == nil {
		t.Fatal(findings)
	}
	who, err := p.Anonymous()
	if err != nil {
		t.Fatal(err)
	}
	return func(r *policy.Request, draw float64) policy.Target { return p.Route(who, r, draw) }
}

func TestTargets(t *testing.T) {
	for _, tt := range []struct {
		name, routes string
		request      policy.Request
		want         policy.Target
	}{
		{"a version", "{to: [{version: 3}]}", policy.Request{Model: "m", Version: "1"}, policy.Target{Model: "m", Version: "3"}},
		{"a label of the model that is asked for", "{models: [m], to: [{label: next}]}", policy.Request{Model: "m"}, policy.Target{Model: "m", Version: "2"}},
		{"another model, in any version", "{models: [m], to: [{model: other}]}", policy.Request{Model: "m", Version: "9"}, policy.Target{Model: "other"}},
		{"a version of another model", "{models: [m], to: [{model: other, version: 4}]}", policy.Request{Model: "m"}, policy.Target{Model: "other", Version: "4"}},
		{"a label of another model", "{models: [m], to: [{model: other, label: stable}]}", policy.Request{Model: "m"}, policy.Target{Model: "other", Version: "7"}},
		{"the model itself, in the version that is asked for", "{models: [m], to: [{model: m}]}", policy.Request{Model: "m", Version: "9"}, policy.Target{Model: "m", Version: "9"}},
		{"a label that the client asks for", "", policy.Request{Model: "m", Version: "stable"}, policy.Target{Model: "m", Version: "1"}},
		{"a label of another model that the client asks for", "", policy.Request{Model: "n", Version: "stable"}, policy.Target{Model: "n", Version: "stable"}},
		{"the first route that matches", "{models: [x], to: [{version: 1}]}, {to: [{version: 2}]}, {to: [{version: 3}]}", policy.Request{Model: "m"}, policy.Target{Model: "m", Version: "2"}},
		{"no route of other tenants", "{tenants: [acme*], to: [{version: 1}]}", policy.Request{Model: "m"}, policy.Target{Model: "m"}},
		{"a route of callers without credentials", "{tenants: [anonymous], to: [{version: 1}]}", policy.Request{Model: "m"}, policy.Target{Model: "m", Version: "1"}},
		{"once, not to where the target's route would", "{models: [m], to: [{model: other}]}, {models: [other], to: [{model: m}]}", policy.Request{Model: "m"}, policy.Target{Model: "other"}},
	} {
		routes := tt.routes
		if strings.Contains(routes, "acme") {
			routes = strings.Replace(routes, "acme*", "'acme*'", 1)
		}
		if got := routing(t, routes)(&tt.request, 0); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestTargetsThatCannotBe(t *testing.T) {
	for to, message := range map[string]string{
		"{version: 1, label: stable}":          "a version and a label",
		"{version: -1}":                        "no version -1",
		"{version: 1.5}":                       "whole number",
		"{label: stable}":                      "needs the models",
		"{model: other, label: next}":          `no label "next"`,
		"{model: m, weight: .inf}":             "not allowed",
		"{model: m, weight: .nan}":             "not allowed",
		"{model: m, weight: 1e300}":            "not allowed",
		"{model: ''}":                          "is empty",
		"{}":                                   "names nothing",
		"{weight: 1}":                          "names nothing",
		"{version: 99999999999999999999999}":   "whole number",
		"{model: m, weight: 0}":                "goes nowhere",
		"{model: m, version: 1, weight: 0.0 }": "goes nowhere",
	} {
		_, findings := policy.Read([]byte("version: 1\nanonymous: {}\nlabels: {m: {stable: 1, next: 2}, other: {stable: 7}}\nroutes: [{to: [" + to + "]}]"))
		if len(findings) == 0 || !strings.Contains(fmt.Sprint(findings), message) {
			t.Errorf("%s: %v, want %q", to, findings, message)
		}
	}
}

// Each target gets as large a part of the draws as its weight is of all, one of weight 0 gets
// none, and no draw is lost.
func TestDrawsAreSharedByWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Float64Range(0, 1000), 1, 6).Draw(t, "weights")
		total := 0.0
		var to []string
		for i, w := range weights {
			if rapid.IntRange(0, 3).Draw(t, "none") == 0 {
				weights[i] = 0
				w = 0
			}
			total += w
			to = append(to, fmt.Sprintf("{version: %d, weight: %f}", i+1, w))
			if fmt.Sprintf("%f", w) == "0.000000" {
				weights[i] = 0
			}
		}
		if total < 1 {
			return
		}
		const draws = 5000
		goes := routing(t, "{to: ["+strings.Join(to, ", ")+"]}")
		got := make([]int, len(weights))
		for i := range draws {
			var version int
			if _, err := fmt.Sscan(goes(&policy.Request{Model: "m"}, float64(i)/float64(draws)).Version, &version); err != nil {
				t.Fatal(err)
			}
			got[version-1]++
		}
		for i, w := range weights {
			want := w / total * float64(draws)
			if w == 0 && got[i] > 0 || float64(got[i]) < want-2 || float64(got[i]) > want+2 {
				t.Fatalf("target %d of weights %v gets %d of %d draws, not %.0f", i+1, weights, got[i], draws, want)
			}
		}
	})
}

// user is a request of one of many users.
func user(i int) *policy.Request {
	return &policy.Request{Model: "m", Header: func(string) []string { return []string{fmt.Sprint("user ", i)} }}
}

// moved counts the users of 2,000 that go elsewhere under other routes.
func moved(t *testing.T, before, after string) (n int) {
	one, other := routing(t, before), routing(t, after)
	for i := range 2000 {
		if one(user(i), 0) != other(user(i), 0.5) {
			n++
		}
	}
	return n
}

// Sticky users stay where they are while other routes change, and no more of them move than
// the weights say.
func TestStickyUsersStay(t *testing.T) {
	const sticky = `sticky: "headers['x-user']"`
	even := "{models: [m], " + sticky + ", to: [{version: 1}, {version: 2}]}"
	for name, tt := range map[string]struct {
		before, after string
		least, most   int
	}{
		"where nothing changes":                  {even, even, 0, 0},
		"where a route comes before theirs":      {even, "{models: [other], to: [{version: 3}]}, " + even, 0, 0},
		"where a route comes behind theirs":      {even, even + ", {to: [{version: 3}]}", 0, 0},
		"where a route gets a name and has one":  {"{name: a, models: [m], " + sticky + ", to: [{version: 1}, {version: 2}]}", "{name: a, models: ['m*'], " + sticky + ", to: [{version: 1}, {version: 2}]}", 0, 0},
		"where a canary grows from 10 % to 20 %": {"{" + sticky + ", to: [{version: 1, weight: 90}, {version: 2, weight: 10}]}", "{" + sticky + ", to: [{version: 1, weight: 80}, {version: 2, weight: 20}]}", 140, 260},
		"where a canary is drained":              {"{" + sticky + ", to: [{version: 1, weight: 90}, {version: 2, weight: 10}]}", "{" + sticky + ", to: [{version: 1, weight: 90}, {version: 2, weight: 0}]}", 140, 260},
		"where the route is another":             {even, "{name: b, models: [m], " + sticky + ", to: [{version: 1}, {version: 2}]}", 900, 1100},
	} {
		if n := moved(t, tt.before, tt.after); n < tt.least || n > tt.most {
			t.Errorf("%s, %d of 2,000 users move, want %d to %d", name, n, tt.least, tt.most)
		}
	}
}
