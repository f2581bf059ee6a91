package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nereid runs a command of the program.
func nereid(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut strings.Builder
	command := exec.CommandContext(t.Context(), program(t, "nereid"), args...)
	command.Stdout, command.Stderr = &out, &errOut
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), command.ProcessState.ExitCode()
}

const pair = `
backend: "echo"
max_batch_size: 4
input [{ name: "a" data_type: TYPE_INT32 dims: [2] }, { name: "b" data_type: TYPE_STRING dims: [-1] }]
output [{ name: "a" data_type: TYPE_INT32 dims: [2] }, { name: "b" data_type: TYPE_STRING dims: [-1] }]
`

func TestInferAndModels(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"pair/config.pbtxt": pair, "pair/1/.keep": "",
		"slow/config.pbtxt": echo(300_000_000), "slow/3/.keep": "",
		"bad/config.pbtxt": "max_batchsize: 1", "bad/1/.keep": "",
	}), "--exit-on-error=false")
	lines := filepath.Join(t.TempDir(), "lines.txt")
	if err := os.WriteFile(lines, []byte("x y\nz\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for protocol, url := range map[string]string{"http": s.HTTP, "grpc": s.GRPC} {
		tests := map[string]struct {
			args   []string
			want   string
			status int
		}{
			"a table": {
				[]string{"infer", "pair", "--input", "a=[1,2]", "--input=b=" + lines},
				"OUTPUT   DATATYPE   SHAPE   VALUES\na        INT32      [1,2]   1 2\nb        BYTES      [1,2]   \"x y\" \"z\"\n", 0,
			},
			"JSON": {
				[]string{"infer", "pair", "--json", "--output=a", "-ia=[1,2]", "-i", `b="q"`},
				`{"model_name":"pair","model_version":"1","outputs":[{"name":"a","datatype":"INT32","shape":[1,2],"data":[1,2]}]}` + "\n", 0,
			},
			"a version":         {[]string{"infer", "slow", "--version=2", "--input=x=1"}, "slow", 1},
			"an unknown model":  {[]string{"infer", "none", "--input=x=1"}, "[model_not_found]", 1},
			"no inputs":         {[]string{"infer", "pair"}, "--input a=INT32[-1,2] --input b=BYTES[-1,-1]", 1},
			"an unknown input":  {[]string{"infer", "pair", "--input=c=1"}, `no input "c"`, 1},
			"an unknown output": {[]string{"infer", "pair", "--input=a=[1,2]", `--input=b="q"`, "--output=c"}, "[output_unexpected]", 1},
			"no NAME=VALUE":     {[]string{"infer", "pair", "--input=c"}, "NAME=FILE", 64},
			"a misspelled flag": {[]string{"infer", "pair", "--otput=c"}, "--output", 64},
			"a list of models":  {[]string{"models"}, "MODEL   VERSION   STATE         CAUSE\nbad", 0},
			"a cause":           {[]string{"models"}, "max_batchsize", 0},
			"models as JSON":    {[]string{"models", "--json"}, "\"name\": \"slow\",\n    \"version\": \"3\",\n    \"state\": \"READY\"", 0},
		}
		for name, tt := range tests {
			t.Run(protocol+": "+name, func(t *testing.T) {
				stdout, stderr, status := nereid(t, append(tt.args, "--url="+url, "--protocol="+protocol)...)
				if text := stdout + stderr; status != tt.status || !strings.Contains(text, tt.want) {
					t.Errorf("exit status %d, want %d with %q:\n%s", status, tt.status, tt.want, text)
				}
			})
		}
	}
}

func TestTimeoutOfInferGoesToTheServer(t *testing.T) {
	s := start(t, repository(t, map[string]string{"slow/config.pbtxt": echo(300_000_000), "slow/1/.keep": ""}))
	for protocol, url := range map[string]string{"http": s.HTTP, "grpc": s.GRPC} {
		_, stderr, status := nereid(t, "infer", "slow", "--input=x=1", "--timeout=300ms", "--url="+url, "--protocol="+protocol)
		if status != 1 || !strings.Contains(strings.ToLower(stderr), "deadline") {
			t.Errorf("%s: exit status %d, %s", protocol, status, stderr)
		}
	}
}

func TestFirstSignalSaysWhatItWaitsForAndFlagsWithoutEffectAreNamed(t *testing.T) {
	inOneProcess(t)
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}), "--http-thread-count=4", "--cuda-memory=0:0")
	s.signal(syscall.SIGINT)
	if status := s.exit(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	for _, want := range []string{`press Ctrl-C again to stop at once","in_flight":0`, `"flags":["--http-thread-count","--cuda-memory-pool-byte-size"]`} {
		if !strings.Contains(s.text(), want) {
			t.Errorf("the log lacks %s", want)
		}
	}
}

func TestNoServer(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		_, stderr, status := nereid(t, "models", "--url=127.0.0.1:1", "--protocol="+protocol, "--timeout="+time.Minute.String())
		if status != 1 || !strings.Contains(stderr, "127.0.0.1:1") {
			t.Errorf("%s: exit status %d, %s", protocol, status, stderr)
		}
	}
}

func TestPortsOfTheOtherProtocolAreNamed(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}))
	for want, args := range map[string][]string{
		"add --protocol=grpc":   {"--url=" + s.GRPC},
		"leave --protocol=grpc": {"--url=" + s.HTTP, "--protocol=grpc"},
		"leave https":           {"--url=https://" + s.HTTP},
		"leave --tls":           {"--url=" + s.GRPC, "--protocol=grpc", "--tls"},
		"nereid serve":          {"--url=127.0.0.1:1"},
	} {
		if _, stderr, status := nereid(t, append([]string{"models"}, args...)...); status != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit status %d, want %q: %s", args, status, want, stderr)
		}
	}
	if _, stderr, status := nereid(t, "serve", "models/"); status != 1 || !strings.Contains(stderr, "is not there: name a model file") {
		t.Errorf("serve models/: exit status %d: %s", status, stderr)
	}
}
