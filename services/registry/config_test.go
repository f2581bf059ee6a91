package registry_test

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/registry"
)

// configured parses a command line, for which kong calls Validate.
func configured(t *testing.T, args ...string) (registry.Config, error) {
	t.Helper()
	// What the flags do not set must stay, and what they set must go.
	c := registry.Default()
	c.Control, c.Poll, c.Namespacing.On = "", 0, true
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return c, err
}

func TestDefaultIsThatOfTheFlags(t *testing.T) {
	c, err := configured(t, "--model-repository=models")
	want := registry.Default()
	want.Repositories = []string{"models"}
	if diff := cmp.Diff(want, c); diff != "" || err != nil {
		t.Errorf("%v (-Default +flags):\n%s", err, diff)
	}
}

func TestFlagsOutOfRangeAreRefused(t *testing.T) {
	for flag, want := range map[string]string{
		"--repository-poll-secs=0":        "",
		"--repository-poll-secs=-1":       "--repository-poll-secs is -1: want 0 to 31536000",
		"--repository-poll-secs=31536001": "--repository-poll-secs is 31536001: want 0 to 31536000",
		"--repository-poll-secs=31536000": "",
		"--repository-poll-secs=1.5":      `want a number of seconds, not "1.5"`,
		"--pool-models==m":                "--pool-models==m: want a pool, = and a list",
		"--pool-labels=a=b":               "want POOL=KEY=VALUE",
		"--pool-labels=a=zone=b":          "",
		"--load-model=m":                  "--model-control-mode=explicit",
		"--model-config-name=../h100":     "give the name of a file in configs",
		"--strict-model-config=maybe":     "true or false",
		"--model-control-mode=sometimes":  "none",
		"--disable-auto-complete-config":  "",
	} {
		_, err := configured(t, "--model-repository=models", flag)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}
