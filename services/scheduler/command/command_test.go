package command

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/scheduler"
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

// What is no flag is as the scheduler has it by default.
func TestConfigOfACommandLine(t *testing.T) {
	c, err := configured(t, "--pool=large", "--max-queued-requests=7", "--max-queued-bytes=0")
	if err != nil {
		t.Fatal(err)
	}
	got := c.config("s1", "host:1")
	if got.ID != "s1" || got.Address != "host:1" || got.Pool != "large" || got.Version != process.Release || got.MaxQueuedRequests != 7 || got.MaxQueuedBytes != 0 {
		t.Errorf("%+v", got)
	}
	if want := scheduler.Default().TakeoverWait; got.TakeoverWait != want {
		t.Errorf("TakeoverWait is %v, want %v", got.TakeoverWait, want)
	}
}

// A gateway may fill the queue alone, which 0 does not bound.
func TestTheWindowOfAGatewayIsTheQueue(t *testing.T) {
	if got := bound(7, 9); got != 7 {
		t.Errorf("a bound of 7 is %d", got)
	}
	if got := bound(0, 9); got != 9 {
		t.Errorf("no bound is %d, want 9", got)
	}
}

func TestMistakesNameTheirFlag(t *testing.T) {
	for arg, want := range map[string]string{
		"--pool=":                  "--pool=",
		"--pool=a/b":               "--pool=a/b",
		"--max-queued-requests=-1": "--max-queued-requests is -1",
		"--max-queued-bytes=-1":    "--max-queued-bytes is -1",
		"--metrics-config=x=true":  "--metrics-config=x=true",
		"--rate-limit=on":          "--rate-limit=on: want off or execution_count",
		"--rate-limit-resource=r":  "--rate-limit-resource=r: want NAME:COUNT or NAME:COUNT:DEVICE",
		"--metrics-label=x":        "--metrics-label=x",
		"--listen=nowhere":         "--listen=nowhere",
		"--nats-url=http://x":      "--nats-url",
		"--cluster-certificate=x":  "--cluster-certificate",
	} {
		if _, err := configured(t, arg); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}
