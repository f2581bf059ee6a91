package policy_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// holds reports whether a condition holds for a request of the tenant acme, of the tier gold.
func holds(t testing.TB, when string, r *policy.Request) bool {
	t.Helper()
	p, findings := policy.Read([]byte("version: 1\ntiers: {gold: {}}\ntenants: {acme: {tier: gold}}\nclasses: [{name: holds, when: " + quoted(when) + "}]"))
	if p == nil {
		t.Fatal(findings)
	}
	return p.Classify(p.Tenant("acme"), r).Name == "holds"
}

func TestConditionsSeeTheRequest(t *testing.T) {
	request := policy.Request{
		Model: "m", Version: "3", BatchSize: 4, Elements: 64, Bytes: 256, Priority: 7,
		Header: func(name string) []string {
			return map[string][]string{"x-user": {"7"}, "x-tags": {"a", "b"}, "x-empty": {""}}[name]
		},
		Inputs: func(each func(string, []int64)) { each("X", []int64{4, 16}); each("S", nil) },
	}
	for when, want := range map[string]bool{
		`tenant == "acme" && tier == "gold" && model == "m" && version == "3"`: true,
		`rows == 4 && elements == 64 && bytes == 256 && priority == 7`:         true,
		`rows > 4`:                                 false,
		`rows > 3.5`:                               true, // numbers of both kinds compare
		`headers["x-user"] == "7"`:                 true,
		`headers["X-User"] == "7"`:                 true, // names of headers have no case
		`headers["x-tags"] == "a,b"`:               true,
		`headers["x-none"] == ""`:                  true,
		`"x-user" in headers`:                      true,
		`"x-empty" in headers`:                     true,
		`"x-none" in headers`:                      false,
		`has(headers.x)`:                           true,  // one that is missing is empty
		`headers.exists(h, h == "x-user")`:         false, // headers cannot be listed
		`size(headers) > 0`:                        false,
		`headers[tenant] == ""`:                    true,
		`inputs["X"][1] == 16`:                     true,
		`inputs["X"][2] == 16`:                     false, // there is none: it does not hold
		`inputs["Y"][0] == 1`:                      false,
		`!(inputs["Y"][0] == 1)`:                   false, // nor does its opposite
		`"Y" in inputs || rows == 4`:               true,
		`inputs["Y"][0] == 1 || rows == 4`:         true, // as CEL has it
		`size(inputs["S"]) == 0`:                   true,
		`inputs.all(name, size(inputs[name]) < 3)`: true,
		`rows / 0 == 1`:                            false,
		`rows % 0 == 1`:                            false,
		`9223372036854775807 + rows > 0`:           false, // overflows
		`timestamp(headers["x-tags"]) > timestamp("2020-01-01T00:00:00Z")`: false, // is no time
		`int(headers["x-tags"]) > 0`:                                       false, // is no number
		`model.matches("^(a|m)+$")`:                                        true,
		`model.startsWith("m") && model.size() == 1`:                       true,
		`duration("1s") > duration("1ms")`:                                 true,
	} {
		if got := holds(t, when, &request); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
}

// A request of which nothing is known, or with numbers at their ends, is no error.
func TestConditionsOfBareRequests(t *testing.T) {
	for when, want := range map[string]bool{
		`rows == 0 && elements == 0 && bytes == 0 && priority == 0 && version == ""`: true,
		`headers["x"] == "" && !("x" in headers)`:                                    true,
		`size(inputs) == 0`: true,
	} {
		if got := holds(t, when, &policy.Request{Model: "m"}); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	if !holds(t, `priority > 0 && bytes > 0`, &policy.Request{Model: "m", Priority: math.MaxUint64, Bytes: math.MaxInt64}) {
		t.Error("the largest priority is less than nothing")
	}
}

func TestExpressionsThatCannotBeCompiled(t *testing.T) {
	for name, when := range map[string]string{
		"of a pattern that is none": `model.matches("(")`,
		"too long":                  `model == "` + strings.Repeat("x", 4<<10) + `"`,
		"too deep":                  strings.Repeat("!(", 60) + "true" + strings.Repeat(")", 60),
		"no condition":              "1 + 1",
		"nothing":                   "   ",
		"of an unknown variable":    "user == 'x'",
		"of an unknown function":    "system('rm')",
		"of wrong types":            "rows == 'x'",
		"that ends too soon":        "rows ==",
		"with a byte that is none":  "model == '\x01",
	} {
		p, findings := policy.Read([]byte("version: 1\nanonymous: {}\nclasses:\n  - name: a\n    when: " + quoted(when)))
		if p != nil || len(findings) == 0 || findings[0].Line > 5 {
			t.Errorf("%s is a condition: %v", name, findings)
		}
	}
	// What is read of a body is not known where a route is chosen.
	for _, variable := range []string{"rows == 1", "elements == 1", "bytes == 1", "priority == 1", "size(inputs) == 1"} {
		if p, _ := policy.Read([]byte("version: 1\nanonymous: {}\nroutes: [{when: " + quoted(variable) + ", to: [{version: 1}]}]")); p != nil {
			t.Errorf("a route knows %s", variable)
		}
	}
}

// What a client sends makes no condition take longer than its bound: it does not hold then.
func TestTheWorkOfConditionsIsBounded(t *testing.T) {
	many := &policy.Request{Model: "m", Header: func(string) []string { return []string{strings.Repeat("a", 1<<20)} }, Inputs: func(each func(string, []int64)) {
		for i := range 1000 {
			each(fmt.Sprint("input", i), make([]int64, 1000))
		}
	}}
	for _, when := range []string{
		`inputs.all(a, inputs.all(b, inputs.all(c, a + b + c != "")))`,
		`inputs.all(a, inputs[a].all(n, n == 0 && inputs[a].all(m, m == 0)))`,
		`headers["x"].matches("(a|aa)+$") && inputs.all(a, headers["x"].matches("(a*)*b") == false)`,
		`inputs.map(a, headers["x"] + headers["x"]).all(s, s != "")`,
	} {
		if holds(t, when, many) {
			t.Errorf("%s holds", when)
		}
	}
}

// A sticky expression that cannot be evaluated, or is empty, draws.
func TestStickyExpressionsThatSayNothing(t *testing.T) {
	for _, sticky := range []string{`headers["x-user"]`, `string(1 / size(version))`, `version`} {
		p, findings := policy.Read([]byte("version: 1\nanonymous: {}\nroutes: [{to: [{version: 1}, {version: 2}], sticky: " + quoted(sticky) + "}]"))
		if p == nil {
			t.Fatal(findings)
		}
		who, err := p.Anonymous()
		if err != nil {
			t.Fatal(err)
		}
		if low, high := p.Route(who, &policy.Request{Model: "m"}, 0), p.Route(who, &policy.Request{Model: "m"}, 0.99); low.Version != "1" || high.Version != "2" {
			t.Errorf("%s: %v, %v", sticky, low, high)
		}
	}
}

// FuzzWhen looks for conditions on which compiling or evaluating panics.
func FuzzWhen(f *testing.F) {
	for _, when := range []string{`headers["x"] == "y" && rows <= 8`, `inputs["X"][1] > 512`, `model.matches("a+")`, `[1,2].map(x, x*x).exists(x, x > 3)`, `{"a": rows}["a"] == 1`} {
		f.Add(when)
	}
	r := &policy.Request{Model: "m", BatchSize: 1, Header: func(string) []string { return []string{"y"} }, Inputs: func(each func(string, []int64)) { each("X", []int64{1, 1000}) }}
	f.Fuzz(func(t *testing.T, when string) {
		if strings.ContainsAny(when, "\n\r") {
			return
		}
		p, _ := policy.Read([]byte("version: 1\nanonymous: {}\nclasses: [{name: a, when: " + quoted(when) + "}]"))
		if p == nil {
			return
		}
		who, err := p.Anonymous()
		if err != nil || errs.Of(who.MayUse("m")) != "" {
			t.Fatal(err)
		}
		first := p.Classify(who, r)
		if again := p.Classify(who, r); again != first {
			t.Errorf("%q: %+v and then %+v", when, first, again)
		}
	})
}
