package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
)

// A parser leaves alone what is no flag.
func TestDefaultIsThatOfTheFlags(t *testing.T) {
	want := Default()
	got := Config{Pause: want.Pause, LongestPause: want.LongestPause, Steady: want.Steady}
	parser, err := kong.New(&got)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(nil)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-Default +flags):\n%s", err, diff)
	}
}

func TestWhatTheMachineKnowsIsCompleted(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Join(filepath.Dir(os.Args[0]), "worker")
	c := Default()
	if _, err := c.Complete(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), beside) || !strings.Contains(err.Error(), "--worker") {
		t.Errorf("without a worker's program: %v, want %s", err, beside)
	}
	c.Program = os.Args[0]
	if got, err := c.Complete(); err != nil || got.ID != host || got.Program != os.Args[0] {
		t.Errorf("%+v, %v, want the id %s", got, err, host)
	}
	c.ID = "n1"
	if got, err := c.Complete(); err != nil || got.ID != "n1" {
		t.Errorf("%+v, %v", got, err)
	}
}
