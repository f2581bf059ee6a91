package process

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/nereid-serving/nereid/libs/lifecycle"
)

const (
	// look is how often the process's use of cores is looked at.
	look = 100 * time.Millisecond
	// busy is the use, in cores, from which one processor is not enough: requests
	// would wait for each other. quiet is that at which one is enough again, when it
	// has not been exceeded for quietLooks.
	busy, quiet = 0.5, 0.3
	quietLooks  = 20
)

// Processors is the part of a process whose work is messages, no longer runs of
// Go code and no C: it has Go use one processor (GOMAXPROCS) while the
// process needs less than half a core, and otherwise as many as it may.
//
// With more, each message that wakes a goroutine also wakes a thread which looks for
// work, finds none and sleeps again. Where few requests are under way that is a
// third of what a gateway or a scheduler costs.
//
// A GOMAXPROCS variable in the environment is the operator's word: then nothing
// is touched.
func Processors() lifecycle.Part {
	return lifecycle.Part{Name: "processors", Run: func(ctx context.Context) error {
		if os.Getenv("GOMAXPROCS") == "" {
			followUse(ctx)
		}
		return nil
	}}
}

// followUse sets the processors until ctx is done, and then gives all back.
func followUse(ctx context.Context) {
	defer runtime.SetDefaultGOMAXPROCS()
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	var p processors
	before, then := coreTime(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		used, now := coreTime(), time.Now()
		if p.take(float64(used-before) / float64(now.Sub(then))) {
			p.set()
		}
		before, then = used, now
	}
}

// processors decides between one processor and all. The zero value has all.
type processors struct {
	one   bool
	quiet int // looks that found the process quiet, since one that did not
}

// take takes in how many cores the process has used since the last look, and
// reports whether the decision has changed.
func (p *processors) take(cores float64) (changed bool) {
	was := p.one
	if p.quiet++; cores > quiet {
		p.quiet = 0
	}
	switch {
	case cores > busy:
		p.one = false
	case p.quiet >= quietLooks:
		p.one = true
	}
	return p.one != was
}

func (p *processors) set() {
	if p.one {
		runtime.GOMAXPROCS(1)
		return
	}
	runtime.SetDefaultGOMAXPROCS() // what the machine and the container's limits allow now
}

// coreTime is how long the process has used cores.
func coreTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0 // it fails for wrong arguments only
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
