package procs_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/nereid-serving/nereid/services/worker/internal/procs"
)

// unset removes a variable until the test ends.
func unset(t *testing.T, name string) {
	t.Setenv(name, "") // restores it
	if err := os.Unsetenv(name); err != nil {
		t.Fatal(err)
	}
}

func TestProcsFollowLanes(t *testing.T) {
	unset(t, "GOMAXPROCS")
	before := runtime.GOMAXPROCS(0)
	p := procs.New(3)
	for _, step := range []struct{ add, want int }{{1, 4}, {2, 6}, {-1, 5}, {100, 27}, {-102, 3}} {
		p.Add(step.add)
		if got := runtime.GOMAXPROCS(0); got != step.want {
			t.Errorf("after %+d lanes GOMAXPROCS is %d, want %d", step.add, got, step.want)
		}
	}
	p.Restore()
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("restored to %d, want %d", got, before)
	}
}

func TestCoresOfTheProcess(t *testing.T) {
	unset(t, "GOMAXPROCS")
	before := runtime.GOMAXPROCS(0)
	p := procs.New(0)
	defer p.Restore()
	p.Add(1)
	if got := runtime.GOMAXPROCS(0); got != before+1 {
		t.Errorf("GOMAXPROCS is %d with one lane, want %d", got, before+1)
	}
}

func TestOperatorsWordStands(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.GOMAXPROCS(0)
	p := procs.New(3)
	p.Add(5)
	if got := runtime.GOMAXPROCS(0); got != before {
		t.Errorf("GOMAXPROCS went from %d to %d", before, got)
	}
	p.Restore()
}
