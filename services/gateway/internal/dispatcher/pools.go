package dispatcher

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Pools are a gateway's dispatchers to all pools. Each starts with the first query about its pool or the first
// request for one of its models, and lasts as long as the gateway. It is safe for concurrent use.
type Pools struct {
	open    func(pool string) *Dispatcher
	running *lifecycle.DynamicGroup

	mu    sync.RWMutex
	known map[string]*Dispatcher // guarded by mu
}

// NewPools makes the dispatchers of the named pools, and later those of others, by calling open.
func NewPools(open func(pool string) *Dispatcher, names ...string) *Pools {
	p := &Pools{open: open, running: lifecycle.NewDynamicGroup(), known: make(map[string]*Dispatcher)}
	for _, name := range names {
		p.to(name)
	}
	return p
}

// Run follows the pools' schedulers until ctx is done. Then the unanswered requests fail.
func (p *Pools) Run(ctx context.Context) error { return p.running.Run(ctx) }

// to returns the dispatcher of a pool, and starts it if necessary.
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

// Reachable reports whether a pool has a scheduler: see [requests.Pool.Reachable].
func (p *Pools) Reachable(pool string) bool { return p.to(pool).deps.Pool.Reachable() }

// Submit submits a request to its pool: see [requests.Pool.Submit].
func (p *Pools) Submit(r *infer.Request) error { return p.to(r.Pool).deps.Pool.Submit(r) }

// CacheUsed reports to a pool's scheduler what the response cache did for a request: see
// [requests.Pool.CacheUsed].
func (p *Pools) CacheUsed(pool string, u infer.CacheUse) { p.to(pool).deps.Pool.CacheUsed(u) }

// EnsembleEnded reports to a pool's scheduler the end of a request for an ensemble: see
// [requests.Pool.EnsembleEnded].
func (p *Pools) EnsembleEnded(pool string, e infer.EnsembleEnd) {
	p.to(pool).deps.Pool.EnsembleEnded(e)
}
