package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/libs/process"
)

const examplePolicy = "../../examples/policy/policy.yaml"

func TestTheExampleOfAPolicyIsValid(t *testing.T) {
	if got := printed(t, "policy", "check", examplePolicy); !strings.Contains(got, "is valid: 3 tenants, 2 bands, 4 tests passed") {
		t.Error(got)
	}
	if got := printed(t, "policy", "test", examplePolicy); strings.Count(got, "ok") != 4 {
		t.Error(got)
	}
	if got := printed(t, "policy", "show", examplePolicy); !strings.Contains(got, "free-corp") || !strings.Contains(got, "1 requests/s, 200 cost units/s, 4 in flight, 600000 cost units per 24h") {
		t.Error(got)
	}
}

func TestThePolicyOfComposeIsValid(t *testing.T) {
	if got := printed(t, "policy", "check", "../../examples/policy/compose.yaml"); !strings.Contains(got, "is valid: 3 tenants, 2 bands, 2 tests passed") {
		t.Error(got)
	}
}

func TestTheSchemaBesideTheExampleIsUpToDate(t *testing.T) {
	beside, err := os.ReadFile("../../examples/policy/policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	schema := printed(t, "policy", "schema")
	if diff := cmp.Diff(string(beside), schema); diff != "" {
		t.Errorf("run: nereid policy schema > examples/policy/policy.schema.json (-there +now):\n%s", diff)
	}
	var s struct {
		Properties map[string]any
		Defs       map[string]struct{ Properties map[string]any } `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(schema), &s); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"models", "when", "band"} {
		if s.Defs["class"].Properties[name] == nil {
			t.Errorf("classes have no field %q", name)
		}
	}
	if s.Properties["tenants"] == nil {
		t.Error("policies have no tenants")
	}
}

func TestPoliciesAreExplained(t *testing.T) {
	explain := func(more ...string) string {
		return printed(t, append([]string{"policy", "explain", examplePolicy}, more...)...)
	}
	for want, got := range map[string]string{
		"interactive": explain("--tenant=gold-corp", "--model=digits", "--input=image=1,1,8,8"),
		"bulk":        explain("--tenant=gold-corp", "--model=digits", "--input=image=64,1,8,8"),
		"refused: tenant_forbidden: tenant 'free-corp' may not use model 'router'": explain("--tenant=free-corp", "--model=router"),
		"send an API key": explain("--model=digits"),
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestWhatIsWrongWithAPolicyIsToldByLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\ntenants:\n  acme: {teir: gold}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"check", "test", "show", "explain"} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), []string{"policy", command, file}, &out, &errOut, noEnv)
		if want := file + `:3:10: unknown field "teir" in tenants.acme; did you mean "tier"?`; status != process.ExitFailed || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: %d %s", command, status, errOut.String())
		}
	}
}

func TestKeysAreMadeWithTheirHashes(t *testing.T) {
	out := printed(t, "policy", "key", "--name=laptop", "--expires=2030-01-31")
	parts := regexp.MustCompile(`(nrd_\S+)\n.*keys: (\[.*\])`).FindStringSubmatch(out)
	if len(parts) != 3 || strings.Contains(parts[2], parts[1]) || !strings.Contains(parts[2], policy.Key(parts[1])) {
		t.Fatal(out)
	}
	if p, findings := policy.Read([]byte("version: 1\ntenants: {acme: {keys: " + parts[2] + "}}")); p == nil {
		t.Error(findings)
	}
	if again := printed(t, "policy", "key"); strings.Contains(again, parts[1]) {
		t.Error("the same key twice")
	}
}
