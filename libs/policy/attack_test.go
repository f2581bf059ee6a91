package policy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// bomb has aliases that stand for 10^levels values.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("version: 1\nx0: &x0 [1]\n")
	for i := 1; i <= levels; i++ {
		fmt.Fprintf(&b, "x%d: &x%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d,", i-1), 10), ","))
	}
	return b.String()
}

// A document that is too large, too deep or made to take long is refused, with a finding.
func TestHostileDocumentsAreRefused(t *testing.T) {
	const head = "version: 1\nanonymous: {}\n"
	names := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, tt := range map[string]struct{ text, message string }{
		"more than its bytes":              {head + strings.Repeat("#", policy.MaxBytes), "more than 524288 bytes"},
		"nested lists":                     {head + "labels: " + strings.Repeat("[", 250_000), "depth"},
		"nested objects":                   {head + "labels: " + strings.Repeat("{a: ", 100_000), "depth"},
		"nested blocks":                    {head + blocks(700), "unknown field"},
		"aliases of aliases":               {bomb(9), ""},
		"an alias of itself":               {head + "tiers: &t {a: *t}", ""},
		"an alias of nothing":              {head + "tiers: *none", "unknown anchor"},
		"one list for thousands":           {head + "tiers:\n  t: {models: &m [" + strings.Repeat("m,", 2_000) + "m]}\ntenants:\n" + names(200, "  a%d: {models: *m}\n"), "more than 200000 values"},
		"wrong names among as many others": {head + "tiers:\n" + names(3_000, "  "+strings.Repeat("t", 40)+"%d: {}\n") + "tenants:\n" + names(3_000, "  a%d: {tier: "+strings.Repeat("u", 40)+"%[1]d}\n"), "no tier"},
		"a merge":                          {"a: &a {version: 1}\n<<: *a\n", "unknown field"},
		"a merge in a tier":                {head + "tiers: {a: &a {weight: 1}, b: {<<: *a}}", "merge keys"},
		"numbers as names":                 {head + "1: 2", `unknown field "1"`},
		"a list as a name":                 {head + "? [a]\n: 1", "unknown field"},
		"binary":                           {"\x00\x01\x02", "control characters"},
		"broken UTF-8":                     {"version: 1\nanonymous: {tier: \"\xff\"}", "UTF-8"},
		"a tag that runs code elsewhere":   {head + "shadow: !!python/object/apply:os.system [x]", "must be a value"},
		"a tag of another type":            {head + "shadow: !!binary dHJ1ZQ==", "true or false"},
		"UTF-16":                           {"\xff\xfev\x00e\x00", ""},
	} {
		p, findings := policy.Read([]byte(tt.text))
		if p != nil || len(findings) == 0 || !strings.Contains(fmt.Sprint(findings), tt.message) {
			t.Errorf("%s: %.300v, want %q", name, findings, tt.message)
		}
	}
}

// blocks nests so many blocks by their indentation.
func blocks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// A document that is large and right is read.
func TestLargeDocumentsAreRead(t *testing.T) {
	var b strings.Builder
	b.WriteString("version: 1\ntenants:\n")
	n := 0
	for ; b.Len() < policy.MaxBytes-200; n++ {
		fmt.Fprintf(&b, "  tenant-%d: {keys: [{sha256: %s}]}\n", n, policy.Key(fmt.Sprint("key ", n)))
	}
	p, findings := policy.Read([]byte(b.String()))
	if p == nil {
		t.Fatal(findings)
	}
	if got := len(p.Tenants()); got != n || p.Tenant("tenant-7") == nil || p.Tenant("tenant-7x") != nil {
		t.Errorf("%d of %d tenants", got, n)
	}
}

func TestFilesAreReadUpToTheirBound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if _, err := policy.ReadFile(file); errs.Of(err) != errs.PolicyInvalid || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := policy.ReadFile(filepath.Dir(file)); errs.Of(err) != errs.PolicyInvalid {
		t.Errorf("a directory: %v", err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(1<<40), f.Close()); err != nil {
		t.Skip(err) // the file system has no such files
	}
	text, err := policy.ReadFile(file)
	if err != nil || len(text) != policy.MaxBytes+1 {
		t.Errorf("%d bytes of a terabyte are read: %v", len(text), err)
	}
	if p, findings := policy.Read(text); p != nil || len(findings) != 1 {
		t.Errorf("a terabyte is a policy: %v", findings)
	}
}

// Whatever a line is damaged to: a finding names a line of the file, and a secret of it is
// in none.
func TestFindingsPointIntoTheFile(t *testing.T) {
	text, err := os.ReadFile("testdata/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	rapid.Check(t, func(t *rapid.T) {
		damaged := append([]string(nil), lines...)
		at := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
		indent := len(damaged[at]) - len(strings.TrimLeft(damaged[at], " "))
		with := rapid.SampledFrom([]string{"", "x", "- x", "x: 1", "x: [", "~", "*a", "weight: -1", "when: '1'", "{", "\t", "tier: nobody", "sha256: my-secret"}).Draw(t, "with")
		damaged[at] = strings.Repeat(" ", indent) + with
		p, findings := policy.Read([]byte(strings.Join(damaged, "\n")))
		if (p == nil) != (len(findings) > 0) {
			t.Fatalf("a policy %v and findings %v", p != nil, findings)
		}
		last := 0
		for _, f := range findings {
			if f.Line < max(last, 1) || f.Line > len(lines) || f.Message == "" || strings.Contains(f.Message+f.Fix, "my-secret") {
				t.Fatalf("%+v after line %d, of %d lines", f, last, len(lines))
			}
			last = f.Line
		}
	})
}

func TestErrorsNameSoManyFindings(t *testing.T) {
	_, findings := policy.Read([]byte("version: 1\nanonymous: {}\na: 1\nb: 1\nc: 1\n"))
	err := policy.Invalid("p.yaml", findings, 2)
	want := `the policy is not valid:
p.yaml:3:1: unknown field "a" in a policy; ` + findings[0].Fix + `
p.yaml:4:1: unknown field "b" in a policy; ` + findings[1].Fix + `
… and 1 more`
	if errs.Of(err) != errs.PolicyInvalid || errs.From(err).Msg != want {
		t.Errorf("%v, want %s", err, want)
	}
	if text := policy.Describe("p.yaml", policy.Finding{Line: 2, Column: 3, Field: "tiers.a", Message: "is wrong"}); text != "p.yaml:2:3: tiers.a: is wrong" {
		t.Error(text)
	}
}

func TestPoliciesAreNamedByTheirText(t *testing.T) {
	digest := func(text string) string {
		p, findings := policy.Read([]byte(text))
		if p == nil {
			t.Fatal(findings)
		}
		return p.Digest
	}
	one, same, other := digest("version: 1\nanonymous: {}"), digest("version: 1\nanonymous: {}"), digest("version: 1\nanonymous: {}\n")
	if one != same || one == other || len(one) != 16 {
		t.Errorf("%s, %s, %s", one, same, other)
	}
}
