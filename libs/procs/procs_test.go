package procs

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// wantProcs checks GOMAXPROCS.
func wantProcs(t *testing.T, when string, want int) {
	t.Helper()
	if got := runtime.GOMAXPROCS(0); got != want {
		t.Errorf("GOMAXPROCS is %d %s, want %d", got, when, want)
	}
}

func TestProcsFollowLanes(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	p := New(3)
	for _, step := range []struct{ add, want int }{{1, 4}, {2, 6}, {-1, 5}, {100, 27}, {-102, before}} {
		p.Add(step.add)
		wantProcs(t, "with other lanes", step.want)
	}
}

func TestCoresOfTheProcess(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	New(0).Add(1)
	wantProcs(t, "with one lane", before+1)
}

func TestOperatorsWordStands(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.GOMAXPROCS(0)
	p := New(3)
	p.Add(5)
	p.setOne(true)
	wantProcs(t, "although the environment sets it", before)
}

func TestOneProcessorIsEnoughForLittleUse(t *testing.T) {
	var u use
	looks := func(n int, cores float64) {
		for range n {
			u.take(cores)
		}
	}
	looks(quietLooks-1, 0.1)
	if u.little {
		t.Fatal("little use before the process has been quiet for long enough")
	}
	looks(1, 0.1)
	if !u.little {
		t.Fatal("a quiet process has much use")
	}
	looks(10*quietLooks, 0.4)
	if !u.little {
		t.Fatal("less than half a core is much after a quiet time")
	}
	looks(1, 0.6)
	if u.little {
		t.Fatal("more than half a core is little")
	}
	looks(10*quietLooks, 0.4)
	if u.little {
		t.Fatal("a process that is not quiet has little use")
	}
	looks(quietLooks/2, 0.1)
	looks(1, 0.4)
	looks(quietLooks-1, 0.1)
	if u.little {
		t.Fatal("a process that was not quiet for all of the time has little use")
	}
}

// A process that sleeps uses no core, so in virtual time it is quiet.
func TestAProcessThatSleepsHasOneProcessor(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	all := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p, done := New(0), make(chan struct{})
		go func() {
			p.Run(ctx)
			close(done)
		}()
		<-time.After(time.Minute)
		wantProcs(t, "while nothing happens", 1)
		p.Add(1)
		wantProcs(t, "while something may run in C", all+1)
		p.Add(-1)
		wantProcs(t, "when that is over", 1)
		cancel()
		<-done
	})
	wantProcs(t, "at the end", all)
}
