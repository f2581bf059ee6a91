package process

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneProcessorIsEnoughForAQuietProcess(t *testing.T) {
	var p processors
	looks := func(n int, cores float64) {
		for range n {
			p.take(cores)
		}
	}
	looks(quietLooks-1, 0.1)
	if p.one {
		t.Fatal("one processor before the process has been quiet for long enough")
	}
	looks(1, 0.1)
	if !p.one {
		t.Fatal("a quiet process has all processors")
	}
	looks(10*quietLooks, 0.4)
	if !p.one {
		t.Fatal("less than half a core took more than one processor")
	}
	looks(1, 0.6)
	if p.one {
		t.Fatal("more than half a core has one processor")
	}
	looks(10*quietLooks, 0.4)
	if p.one {
		t.Fatal("a process that is not quiet lost its processors")
	}
	looks(quietLooks/2, 0.1)
	looks(1, 0.4)
	looks(quietLooks-1, 0.1)
	if p.one {
		t.Fatal("a process that was not quiet for all of the time lost its processors")
	}
}

// A process that sleeps uses no core, so in virtual time it is quiet.
func TestAProcessThatSleepsHasOneProcessor(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	all := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Processors().Run(ctx) }()
		<-time.After(time.Minute)
		if n := runtime.GOMAXPROCS(0); n != 1 {
			t.Errorf("a process that sleeps has %d processors", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if n := runtime.GOMAXPROCS(0); n != all {
		t.Errorf("%d processors were not given back: %d", all, n)
	}
}
