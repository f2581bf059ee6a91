package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/process"
)

func noEnv(string) (string, bool) { return "", false }

// serveNode is the command as the parser knows it.
func serveNode(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := kong.New(&commands{Serve: newServe()}, variables())
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range parser.Model.Children {
		if node.Name == "serve" {
			return node
		}
	}
	t.Fatal("no command serve")
	return nil
}

// parseServe parses a command line of serve as run does.
func parseServe(args ...string) (*kong.Context, string) {
	var out bytes.Buffer
	command, _ := parse(append([]string{"serve", "--model-repository=x"}, args...), io.Discard, &out, noEnv)
	return command, out.String()
}

func TestRefusedFlagsAreTakenWhereTheyAskForNothing(t *testing.T) {
	for name, f := range flagsByName(serveNode(t)) {
		if f.Tag.Get(effectTag) != effectRefused {
			continue
		}
		unless, ok := f.Tag.Get("unless"), f.Tag.Has("unless")
		if !ok {
			continue
		}
		for value := range strings.SplitSeq(unless, "|") {
			if command, text := parseServe("--" + name + "=" + value); command == nil {
				t.Errorf("--%s=%s asks for nothing and is refused: %s", name, value, text)
			}
		}
	}
}

func TestRefusedSettingsOfTheEnvironment(t *testing.T) {
	env := func(name string) (string, bool) { return "1", name == "NEREID_ALLOW_SAGEMAKER" }
	var out bytes.Buffer
	if command, status := parse([]string{"serve", "--model-repository=x"}, io.Discard, &out, env); command != nil || status != process.ExitUsage {
		t.Errorf("taken: status %d, %s", status, out.String())
	}
}

func TestOptionsAsGetoptTakesThem(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"a value apart":           {[]string{"--http-port", "9"}, "--http-port=9"},
		"a value attached":        {[]string{"--http-port=9"}, "--http-port=9"},
		"a prefix, apart":         {[]string{"--http-po", "9"}, "--http-port=9"},
		"a prefix, attached":      {[]string{"--http-po=9"}, "--http-port=9"},
		"a name that is a prefix": {[]string{"--grpc-use-ssl", "false"}, "--grpc-use-ssl=false"},
		"no value":                {[]string{"--disable-auto"}, "--disable-auto-complete-config=true"},
		"a value like a flag":     {[]string{"--id", "model-"}, "--id=model-"},
		"a deprecated name":       {[]string{"--model-store", "y"}, "--model-repository=[x y]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			command, text := parseServe(tt.args...)
			if command == nil {
				t.Fatal(text)
			}
			want, value, _ := strings.Cut(strings.TrimPrefix(tt.want, "--"), "=")
			for _, f := range command.Flags() {
				if f.Name != want {
					continue
				}
				if got := textOf(f); got != value {
					t.Errorf("--%s is %s, want %s", want, got, value)
				}
			}
		})
	}
}

func textOf(f *kong.Flag) string {
	if list := valuesOf(f); len(list) > 1 {
		return "[" + strings.Join(list, " ") + "]"
	}
	return valuesOf(f)[0]
}

func TestMistakesAreNamed(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"an ambiguous prefix": {[]string{"--http-", "9"}, "--http-address, --http-header-forward-pattern"},
		"a misspelled flag":   {[]string{"--htp-port=9"}, `did you mean "--http-port"`},
		"no number":           {[]string{"--http-thread-count=many"}, "--http-thread-count"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if command, text := parseServe(tt.args...); command != nil || !strings.Contains(text, tt.want) {
				t.Errorf("%s, want %s", text, tt.want)
			}
		})
	}
}

func TestPrefixesOfOtherCommandsAreLeft(t *testing.T) {
	args := []string{"--config", "serve", "check", "serve", "--model-conf", "x"}
	got, err := expand(args, serveNode(t))
	if diff := cmp.Diff(args, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
