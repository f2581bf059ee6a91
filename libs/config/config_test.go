package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// settings are a command's flags.
type settings struct {
	Config  string           `help:"Settings file."`
	Version kong.VersionFlag `help:"Print the version."`
	Serve   struct {
		HTTPPort  int           `name:"http-port" default:"8000"`
		AllowHTTP config.Switch `name:"allow-http" default:"true"`
		Model     []string      `name:"model-repository" sep:"none"`
	} `cmd:""`
}

// parse reads settings from a file's text, an environment and flags.
func parse(t *testing.T, file string, env map[string]string, args ...string) (*settings, error) {
	t.Helper()
	args = append([]string{"serve"}, args...)
	if file != "" {
		path := filepath.Join(t.TempDir(), "nereid.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	read, err := config.Read(args, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		return nil, err
	}
	var s settings
	parser, err := kong.New(&s, kong.Resolvers(read), config.Numbers())
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return &s, read.Locate(err, args)
}

func TestFlagBeforeEnvironmentBeforeFileBeforeDefault(t *testing.T) {
	env := map[string]string{"NEREID_HTTP_PORT": "3"}
	tests := []struct {
		file string
		env  map[string]string
		args []string
		want int
	}{
		{want: 8000},
		{file: "http-port: 2", want: 2},
		{file: "http-port: 2", env: env, want: 3},
		{file: "http-port: 2", env: map[string]string{"NEREID_HTTP_PORT": ""}, want: 2},
		{file: "http-port: 2", env: env, args: []string{"--http-port=4"}, want: 4},
	}
	for _, tt := range tests {
		s, err := parse(t, tt.file, tt.env, tt.args...)
		if err != nil || s.Serve.HTTPPort != tt.want {
			t.Errorf("%+v: %d, %v", tt, s.Serve.HTTPPort, err)
		}
	}
}

func TestValuesOfTheFile(t *testing.T) {
	s, err := parse(t, "allow-http: false\nmodel-repository: [/a, '/b,c']\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Serve.AllowHTTP.On {
		t.Error("allow-http is on")
	}
	if diff := cmp.Diff([]string{"/a", "/b,c"}, s.Serve.Model); diff != "" {
		t.Error(diff)
	}
}

func TestSwitchTakesAWord(t *testing.T) {
	for args, want := range map[string]bool{"--allow-http=true": true, "--allow-http false": false, "--allow-http 0": false} {
		s, err := parse(t, "", nil, strings.Fields(args)...)
		if err != nil || s.Serve.AllowHTTP.On != want {
			t.Errorf("%s: %t, %v", args, s.Serve.AllowHTTP.On, err)
		}
	}
	if _, err := parse(t, "", nil, "--allow-http=maybe"); err == nil || !strings.Contains(err.Error(), `"maybe"`) {
		t.Errorf("maybe: %v", err)
	}
}

func TestMistakesNameLineAndRemedy(t *testing.T) {
	tests := map[string]struct{ file, want string }{
		"a misspelled name": {"\nhttp-prt: 1", `nereid.yaml:2: unknown setting "http-prt", did you mean "http-port"?`},
		"nothing near":      {"color: red", `nereid.yaml:1: unknown setting "color"`},
		"twice":             {"http-port: 1\nhttp-port: 2", `nereid.yaml:2: setting "http-port" is given twice`},
		"a nested one":      {"http-port:\n  value: 1", `setting "http-port" wants a value or a list`},
		"a nested list":     {"model-repository: [[a]]", `nereid.yaml:1: setting "model-repository" wants a list of plain values`},
		"a bad value":       {"allow-http: true\nhttp-port: many", `nereid.yaml:2: --http-port: want a whole number, not "many"`},
		"a list":            {"http-port: [1, 2]", `nereid.yaml:1: --http-port: want a whole number, not "[1 2]"`},
		"too large":         {"http-port: 99999999999999999999", "nereid.yaml:1: --http-port: want a whole number, not"},
		"another file":      {"config: other.yaml", `nereid.yaml:1: unknown setting "config"`},
		"no settings":       {"- http-port", "nereid.yaml:1: want settings as name: value"},
		"no yaml":           {"a: [", "nereid.yaml"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(t, tt.file, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// TestMistakesNameWhatGaveTheValue has several places that give it.
func TestMistakesNameWhatGaveTheValue(t *testing.T) {
	env := map[string]string{"NEREID_HTTP_PORT": "many"}
	for want, args := range map[string][]string{
		`NEREID_HTTP_PORT: --http-port: want a whole number, not "many"`: nil,
		`--http-port: want a whole number, not "few"`:                    {"--http-port=few"},
		`unknown flag --http-prt, did you mean "--http-port"?`:           {"--http-prt=1"},
	} {
		if _, err := parse(t, "http-port: some", env, args...); err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}

// TestWhatIsNoSettingComesFromTheCommandLineAlone has variables that others
// set for reasons of their own.
func TestWhatIsNoSettingComesFromTheCommandLineAlone(t *testing.T) {
	s, err := parse(t, "", map[string]string{"NEREID_VERSION": "0.1.0", "NEREID_HELP": "me", "NEREID_HTTP_PORT": "3"})
	if err != nil || s.Serve.HTTPPort != 3 {
		t.Errorf("%d, %v", s.Serve.HTTPPort, err)
	}
}

func TestMisspelledVariables(t *testing.T) {
	parser, err := kong.New(new(settings))
	if err != nil {
		t.Fatal(err)
	}
	got := config.Misspelled([]string{
		"NEREID_MODEL_REPOSITRY=/models", "NEREID_HTTP_PROT=1", "NEREID_HTTP_PORT=2", "NEREID_ALLOW_HTP=",
		// Other programs' and Kubernetes'.
		"NEREID_BIN=nereid", "NEREID_PYTHON=python", "NEREID_PORT=tcp://10.0.0.1:8000", "NEREID_PORT_8000_TCP_PORT=8000", "NEREID_SERVICE_PORT=8000",
		"NEREID_GRPC_PORT=8001", "HTTP_PROT=1", "NEREID=1",
	}, parser.Model)
	want := []config.Misspelling{{"NEREID_HTTP_PROT", "NEREID_HTTP_PORT"}, {"NEREID_MODEL_REPOSITRY", "NEREID_MODEL_REPOSITORY"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMissingFile(t *testing.T) {
	_, err := config.Read(nil, func(name string) (string, bool) { return "/no/such/file", name == "NEREID_CONFIG" })
	if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("%v", err)
	}
	if _, err := config.Read([]string{"--config=/no/such/file"}, os.LookupEnv); err == nil {
		t.Error("a missing file named by a flag is no error")
	}
	if _, err := config.Read([]string{"--", "--config=/no/such/file"}, os.LookupEnv); err != nil {
		t.Errorf("a flag of another program was read: %v", err)
	}
}
