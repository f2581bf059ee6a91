package embedded

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker"
)

// parse has the flags fill what Default has given.
func parse(t *testing.T, c Config, args ...string) Config {
	t.Helper()
	parser, err := kong.New(&c, kong.Vars{"onnxruntime": worker.RuntimeLibrary(), "metrics_port": "8002", "metrics_address": "that of HTTP"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"--model-repository=models"}, args...)); err != nil {
		t.Fatal(err)
	}
	return c
}

// A parser leaves alone what is no flag.
func TestDefaultIsThatOfTheFlags(t *testing.T) {
	want, blank := Default(), Default()
	want.Registry.Repositories = []string{"models"}
	blank.ID, blank.ExitOnError, blank.Admin, blank.Host = "", config.Switch{}, process.AdminSettings{}, process.HostSettings{}
	for name, from := range map[string]Config{"Default": Default(), "nothing": blank} {
		if diff := cmp.Diff(want, parse(t, from)); diff != "" {
			t.Errorf("(-Default +flags over %s):\n%s", name, diff)
		}
	}
}

func TestMetricsListenWhereHTTPDoes(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"HTTP's address":     {[]string{"--http-address=10.0.0.1"}, "10.0.0.1"},
		"HTTP on a socket":   {[]string{"--http-address=unix:/run/http"}, "127.0.0.1"},
		"everywhere without": {[]string{"--http-address=10.0.0.1", "--allow-http=false"}, "0.0.0.0"},
		"its own":            {[]string{"--http-address=10.0.0.1", "--metrics-address=10.0.0.2"}, "10.0.0.2"},
	} {
		c := parse(t, Default(), tt.args...)
		if admin, err := c.complete(); err != nil || admin.Address != tt.want {
			t.Errorf("%s: %q, want %q; %v", name, admin.Address, tt.want, err)
		}
	}
}
