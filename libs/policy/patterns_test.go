package policy_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/policy"
)

// limitedTo is a tenant that may use the models of a pattern.
func limitedTo(t interface{ Fatal(...any) }, pattern string) *policy.Tenant {
	p, findings := policy.Read([]byte("version: 1\ntenants: {a: {models: [" + quoted(pattern) + "]}}"))
	if p == nil {
		t.Fatal(findings)
	}
	return p.Tenant("a")
}

// quoted writes a text as YAML has it between single quotes.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

func TestPatternsMatchWholeNames(t *testing.T) {
	for _, tt := range []struct {
		pattern   string
		like      []string
		otherwise []string
	}{
		{"m", []string{"m"}, []string{"", "M", "mm", "am", "m "}},
		{"*", []string{"", "m", "a*b", "\x00"}, nil},
		{"text_*", []string{"text_", "text_7", "text_*"}, []string{"text", "my_text_7"}},
		{"*_small", []string{"_small", "bert_small"}, []string{"bert_small_secret", "_small.v2", "small"}},
		{"a*z", []string{"az", "abcz", "a*z"}, []string{"a", "z", "azb", "baz"}},
		{"aa*aa", []string{"aaaa", "aabaa"}, []string{"aa", "aaa"}},
		{"*a*b*", []string{"ab", "xaxbx"}, []string{"ba", "a", "b"}},
		{"a*b*c", []string{"abc", "abbc", "axbxbxc"}, []string{"acb", "abcx"}},
		{"**", []string{"", "m"}, nil},
		{"a.c", []string{"a.c"}, []string{"abc"}},
		{"[ab]?", []string{"[ab]?"}, []string{"a", "ab"}},
	} {
		tenant := limitedTo(t, tt.pattern)
		for _, name := range tt.like {
			if err := tenant.MayUse(name); err != nil {
				t.Errorf("%q is not like %q: %v", name, tt.pattern, err)
			}
		}
		for _, name := range tt.otherwise {
			if tenant.MayUse(name) == nil {
				t.Errorf("%q is like %q", name, tt.pattern)
			}
		}
	}
}

// expression writes a pattern as a regular expression.
func expression(pattern string) *regexp.Regexp {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`)
}

func TestPatternsAreRegularExpressions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{1,8}`).Draw(t, "pattern")
		tenant, same := limitedTo(t, pattern), expression(pattern)
		for range 20 {
			name := rapid.StringMatching(`[abc]{0,10}`).Draw(t, "name")
			if got, want := tenant.MayUse(name) == nil, same.MatchString(name); got != want {
				t.Fatalf("%q is like %q: %v, want %v", name, pattern, got, want)
			}
		}
	})
}

// A name that an attacker chooses costs no more than its length, whatever the pattern.
func TestPatternsTakeNoExponentialTime(t *testing.T) {
	tenant := limitedTo(t, strings.Repeat("*a", 1000)+"*b")
	if tenant.MayUse(strings.Repeat("a", 100_000)) == nil {
		t.Error("a name without its end is like the pattern")
	}
}
