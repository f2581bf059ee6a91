package main

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/process"
)

func noEnv(string) (string, bool) { return "", false }

// tritonFlags is what becomes of every flag of tritonserver.
func tritonFlags() map[string]string {
	works := strings.Fields(`
		id exit-timeout-secs exit-on-error strict-readiness disable-auto-complete-config strict-model-config help
		log-verbose log-info log-warning log-error log-format log-file
		model-repository model-store model-control-mode repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count model-namespacing
		allow-http reuse-http-port http-restricted-api http-address http-port http-max-input-size
		allow-grpc grpc-address grpc-port reuse-grpc-port grpc-restricted-protocol
		grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
		grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
		grpc-http2-min-recv-ping-interval-without-data grpc-max-connection-age grpc-max-connection-age-grace
		allow-metrics metrics-address metrics-port allow-cpu-metrics allow-gpu-metrics metrics-interval-ms metrics-config
		backend-config backend-directory host-policy rate-limit rate-limit-resource pinned-memory-pool-byte-size cache-config response-cache-byte-size`)
	none := strings.Fields(`
		enable-peer-access repoagent-directory cache-directory
		http-thread-count grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
		grpc-http2-max-pings-without-data
		trace-rate trace-count trace-log-frequency
		cuda-memory-pool-byte-size cuda-virtual-address-size
		min-supported-compute-capability buffer-manager-thread-count model-load-gpu-limit
		sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
		vertex-ai-port vertex-ai-thread-count vertex-ai-default-model`)
	refused := strings.Fields(`
		http-header-forward-pattern
		grpc-header-forward-pattern grpc-http2-max-ping-strikes
		trace-config trace-file trace-level
		allow-client-shm allow-sagemaker allow-vertex-ai`)
	all := make(map[string]string)
	for effect, names := range map[string][]string{"": works, effectNone: none, effectRefused: refused} {
		for _, name := range names {
			all[name] = effect
		}
	}
	return all
}

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

func TestEveryFlagOfTritonHasAnEffectOrAReason(t *testing.T) {
	flags := flagsByName(serveNode(t))
	want := tritonFlags()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		f := flags[name]
		if f == nil {
			t.Errorf("--%s is unknown", name)
			continue
		}
		if f.Tag.Get(effectTag) != want[name] {
			t.Errorf("--%s: effect %q, want %q", name, f.Tag.Get(effectTag), want[name])
		}
	}
	for name, f := range flags {
		if _, known := want[name]; f.Tag.Has(effectTag) && !known {
			t.Errorf("--%s is no flag of Triton's: give it an effect", name)
		}
	}
}

// parseServe parses a command line of serve as run does.
func parseServe(args ...string) (*kong.Context, string) {
	var out bytes.Buffer
	command, _ := parse(append([]string{"serve", "--model-repository=x"}, args...), io.Discard, &out, noEnv)
	return command, out.String()
}

// given returns a value that a flag's type takes.
func given(f *kong.Flag) string {
	switch {
	case f.Enum != "":
		return f.EnumSlice()[1]
	case f.Target.Kind().String() == "struct":
		return "true"
	}
	return "7"
}

func TestIdleFlagsAreTakenAndListed(t *testing.T) {
	for name, f := range flagsByName(serveNode(t)) {
		if f.Tag.Get(effectTag) != effectNone {
			continue
		}
		command, text := parseServe("--" + name + "=" + given(f))
		if command == nil {
			t.Errorf("--%s: %s", name, text)
			continue
		}
		if diff := cmp.Diff([]string{"--" + name}, withoutEffect(command)); diff != "" {
			t.Errorf("listed without effect (-want +got):\n%s", diff)
		}
	}
}

func TestRefusedFlagsSayWhatToDo(t *testing.T) {
	for name, f := range flagsByName(serveNode(t)) {
		if f.Tag.Get(effectTag) != effectRefused {
			continue
		}
		if command, text := parseServe("--" + name + "=" + given(f)); command != nil || !strings.Contains(text, f.Help) {
			t.Errorf("--%s is taken, or refused without %q: %s", name, f.Help, text)
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
	env := func(name string) (string, bool) { return "1", name == "NEREID_TRACE_FILE" }
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
		"a positional":        {[]string{"models"}, "unexpected argument models"},
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
