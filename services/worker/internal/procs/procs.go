// Package procs sets how many threads run Go code at once in a process whose
// instances spend their time in C.
package procs

import (
	"os"
	"runtime"
	"sync"
)

// Procs owns the process's GOMAXPROCS from [New] to [Procs.Restore].
//
// A goroutine that is in a C call for longer than 20 µs gives its processor
// away, and when it returns it queues for one like any other. With as many
// processors as cores, all of them busy with requests, a run of 305 µs was
// seen to take 1357 µs; with one more for each instance that runs at once the
// operating system shares the cores fairly between them, and it took 612 µs.
// More than that only adds switching, and each processor costs the garbage
// collector and the scheduler a little even when it is idle: beyond so many
// lanes per core as can never all have work, further ones are not counted.
//
// A GOMAXPROCS variable in the environment is the operator's word: then
// nothing is touched. Procs is safe for concurrent use.
type Procs struct {
	cores int
	fixed bool

	mu     sync.Mutex
	before int // guarded by mu; 0 until first set
	lanes  int // guarded by mu
}

const lanesPerCore = 8

// New makes the owner, for a worker that has so many cores; 0 is all that
// the process may use. It changes nothing yet.
func New(cores int) *Procs {
	_, fixed := os.LookupEnv("GOMAXPROCS")
	if cores == 0 {
		cores = runtime.GOMAXPROCS(0)
	}
	return &Procs{cores: cores, fixed: fixed}
}

// Add says that n more batches may run in C at once; n is negative when instances
// go.
func (p *Procs) Add(n int) {
	if p.fixed || n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = max(p.lanes+n, 0) // an instance may go after Restore
	was := runtime.GOMAXPROCS(p.cores + min(p.lanes, lanesPerCore*p.cores))
	if p.before == 0 {
		p.before = was
	}
}

// Restore puts back what was before the first Add.
func (p *Procs) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.before != 0 {
		runtime.GOMAXPROCS(p.before)
		p.before, p.lanes = 0, 0
	}
}
