package command

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker"
)

func configured(t *testing.T, args ...string) (*Command, error) {
	t.Helper()
	p := Program()
	parser, err := kong.New(p.Settings, p.Vars)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	return p.Settings.(*Command), err
}

// What is no flag is as the worker has it by default.
func TestConfigOfACommandLine(t *testing.T) {
	c, err := configured(t, "--pool=large", "--device=gpu:1", "--exit-timeout-secs=7", "--model-load-thread-count=2")
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.config("w1", "host:1")
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "w1" || got.Address != "host:1" || got.Pool != "large" || got.Device.Number != 1 || got.DrainTimeout.Seconds() != 7 || got.LoadConcurrency != 2 {
		t.Errorf("%+v", got)
	}
	if d := worker.Default(); got.ReloadLinger != d.ReloadLinger {
		t.Errorf("%+v, want what is no flag as in %+v", got, d)
	}
}

func TestMistakesNameTheirFlag(t *testing.T) {
	for arg, want := range map[string]string{
		"--pool=":                           "--pool=",
		"--label=pool=a":                    "--label=pool=a",
		"--label=zone":                      "--label=zone",
		"--memory-budget=much":              "--memory-budget=much",
		"--device=tpu":                      "--device=tpu",
		"--exit-timeout-secs=-1":            "--exit-timeout-secs is -1",
		"--backend-config=echo,a=b":         "--backend-config=echo,a=b",
		"--host-policy=cpu,threads=2":       "--host-policy=cpu,threads=2",
		"--download-concurrency=0":          "--download-concurrency is 0",
		"--download-stall-timeout-secs=-1":  "--download-stall-timeout-secs is -1",
		"--backend-config=,intra_threads=2": "--backend-config=,intra_threads=2",
	} {
		if _, err := configured(t, arg); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}
