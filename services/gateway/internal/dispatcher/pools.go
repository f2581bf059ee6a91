package dispatcher

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Pools are a gateway's ways to all pools. Each begins with the first question
// about the pool or request for a model of it, and lasts as long as the gateway. It is safe for
// concurrent use.
type Pools struct {
	open    func(pool string) *Dispatcher
	running *lifecycle.DynamicGroup

	mu    sync.RWMutex
	known map[string]*Dispatcher // guarded by mu
}

// NewPools makes the ways to the pools that are named, and later those to
// others, by open.
func NewPools(open func(pool string) *Dispatcher, names ...string) *Pools {
	p := &Pools{open: open, running: lifecycle.NewDynamicGroup(), known: make(map[string]*Dispatcher)}
	for _, name := range names {
		p.to(name)
	}
	return p
}

// Run follows the pools' schedulers until ctx is done. Then requests that have
// no answer fail.
func (p *Pools) Run(ctx context.Context) error { return p.running.Run(ctx) }

// to is the way to a pool.
func (p *Pools) to(pool string) *Dispatcher {
	p.mu.RLock()
	d := p.known[pool]
	p.mu.RUnlock()
	if d != nil {
		return d
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if d = p.known[pool]; d != nil {
		return d
	}
	d = p.open(pool)
	p.known[pool] = d
	p.running.Add(d.Run)
	return d
}

// Reachable reports whether a pool has a scheduler: see [Dispatcher.Reachable].
func (p *Pools) Reachable(pool string) bool { return p.to(pool).Reachable() }

// Submit takes a request to its pool: see [Dispatcher.Submit].
func (p *Pools) Submit(r *infer.Request) error { return p.to(r.Pool).Submit(r) }

// Cancel says that nobody waits for a request any more.
func (p *Pools) Cancel(id infer.RequestID) {
	if d := p.of(id); d != nil {
		d.Cancel(id)
	}
}

// Respond takes a response of a worker.
func (p *Pools) Respond(r *infer.Response) {
	if d := p.of(r.Work.Request); d != nil {
		d.Respond(r)
		return
	}
	r.Release()
}

// Lost says that a worker is gone.
func (p *Pools) Lost(worker uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, d := range p.known {
		d.Lost(worker)
	}
}

// of is the way that a request has taken; nil if it is over.
func (p *Pools) of(id infer.RequestID) *Dispatcher {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, d := range p.known {
		if len(p.known) == 1 || d.has(id) {
			return d
		}
	}
	return nil
}

// has reports whether a request has no answer yet.
func (d *Dispatcher) has(id infer.RequestID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.entries[id] != nil
}
