// Package procs sets how many threads run Go code at a time: one in a process
// with little to do, more than there are cores if its models run in C.
package procs

import (
	"context"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

const (
	lanesPerCore = 8

	// look is how often the process's use of cores is looked at.
	look = 100 * time.Millisecond
	// busy is the use, in cores, from which one processor is not enough: requests
	// would wait for each other. quiet is that at which one is enough again, when it
	// has not been exceeded for quietLooks.
	busy, quiet = 0.5, 0.3
	quietLooks  = 20
)

// Procs owns the process's GOMAXPROCS.
//
// Where nothing runs in C, and while the process needs less than half a core, it is
// one. With more, each message that wakes a goroutine also wakes a thread which looks
// for work, finds none and sleeps again: a quarter to a third of what a
// gateway or a scheduler costs while few requests are under way.
//
// A goroutine that is in a C call for longer than 20 µs gives its processor away, and when it
// returns it queues for one like any other. With as many processors as cores, all of them busy
// with requests, a run of 305 µs was seen to take 1357 µs; with one more for each instance that
// runs at once the operating system shares the cores fairly between them, and it took 612 µs.
// More than that only adds switching, and each processor costs the garbage collector and the
// scheduler a little even when it is idle: beyond the number of instances per core that can
// have work at a time, further ones are not counted.
//
// If the operator sets GOMAXPROCS in the environment, nothing is changed. Procs is safe for
// concurrent use.
type Procs struct {
	cores int
	fixed bool

	mu    sync.Mutex
	lanes int  // batches that may run in C at once; guarded by mu
	one   bool // the process has little to do; guarded by mu
}

// New returns the owner, for a process whose runs in C use that many cores; 0 is all that the
// process may use. It changes nothing yet.
func New(cores int) *Procs {
	if cores == 0 {
		cores = runtime.GOMAXPROCS(0)
	}
	return &Procs{cores: cores, fixed: os.Getenv("GOMAXPROCS") != ""}
}

// Add says that n more batches may run in C at a time; n is negative when instances end.
func (p *Procs) Add(n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = max(p.lanes+n, 0) // an instance may go after Run has ended
	p.setLocked()
}

// Run follows the process's CPU use until ctx is done. Then it restores all processors.
func (p *Procs) Run(ctx context.Context) {
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	var u use
	before, then := coreTime(), time.Now()
	for {
		select {
		case <-ctx.Done():
			p.restore()
			return
		case <-ticks.C:
		}
		used, now := coreTime(), time.Now()
		if u.take(float64(used-before) / float64(now.Sub(then))) {
			p.setOne(u.little)
		}
		before, then = used, now
	}
}

func (p *Procs) setOne(one bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.one = one
	p.setLocked()
}

func (p *Procs) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes, p.one = 0, false
	p.setLocked()
}

func (p *Procs) setLocked() {
	switch {
	case p.fixed:
	case p.lanes > 0:
		runtime.GOMAXPROCS(p.cores + min(p.lanes, lanesPerCore*p.cores))
	case p.one:
		runtime.GOMAXPROCS(1)
	default:
		runtime.SetDefaultGOMAXPROCS() // what the machine and the container's limits allow now
	}
}

// use is what the last looks have found. The zero value is much.
type use struct {
	little bool
	quiet  int // looks that found the process quiet, since one that did not
}

// take takes in how many cores the process has used since the last look, and
// reports whether that has changed what is found.
func (u *use) take(cores float64) (changed bool) {
	was := u.little
	if u.quiet++; cores > quiet {
		u.quiet = 0
	}
	switch {
	case cores > busy:
		u.little = false
	case u.quiet >= quietLooks:
		u.little = true
	}
	return u.little != was
}

// coreTime is how long the process has used cores.
func coreTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0 // it fails for wrong arguments only
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
