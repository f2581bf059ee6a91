// Package cache answers requests that are equal to others by one execution.
//
// A [Cache] has responses by their [Key] in a [Store], and each request goes through
// it by a [Lookup]: a hit is a response of its own, a miss keeps the response that
// its model gives. Where the model says so, a request also waits for an equal one that
// is executed already. What is kept and shared are copies, so that no memory of workers
// is held.
package cache

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Store has copies of responses: see [NewLocal] and [NewRedis]. It is safe for
// concurrent use.
type Store interface {
	// get returns what is kept under a key, or nil. It ends with ctx.
	get(ctx context.Context, k Key) *entry
	// set keeps what made returns, which may be nil. It calls made before it returns,
	// or not at all, and waits for nobody.
	set(k Key, made func() *entry)
	// limit is the largest entry, in bytes.
	limit() int64
	// waits says that get waits for another process.
	waits() bool
}

// Cache answers requests that are equal to others. It is safe for concurrent use; nil
// answers none.
type Cache struct {
	// TooLarge is called for the 1st, 2nd, 4th, 8th and so on response that the store has
	// no room for even when it is empty, with its size in bytes. It may be nil, and is set
	// before the first request.
	TooLarge func(bytes, limit int64)

	store   Store // nil keeps none
	refused atomic.Uint64
	flights flights
	shared  prometheus.Counter
	report  func(pool string, u infer.CacheUse)
}

// New makes a cache of what a store has, which may be nil. report is told what became
// of each request, from any goroutine.
func New(s Store, report func(pool string, u infer.CacheUse)) *Cache {
	return &Cache{store: s, flights: newFlights(), report: report, shared: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nereid_gateway_shared_requests_total", Help: "Requests that were answered by the execution of an equal one in flight.",
	})}
}

// Collectors are the families of a cache that are not its store's.
func (c *Cache) Collectors() []prometheus.Collector { return []prometheus.Collector{c.shared} }

// Model is what a lookup has to know of a request's model.
type Model struct {
	Content string // as core.Version has it
	// Kept says that its responses may be kept, and Shared that requests in flight may
	// share one.
	Kept, Shared bool
}

// Lookup is one request's way through the cache, by one goroutine at a time. The zero
// value is that of a request that is not looked up.
type Lookup struct {
	cache   *Cache // of a miss whose response has not come
	key     Key
	pool    string
	kept    bool
	asks    bool    // the store is still to be asked
	share   *share  // nil where the request shares no execution
	follows *flight // that it waits for; nil without one
	use     infer.CacheUse
}

// Look looks for the response to a checked request, whose model allows it. A hit is the
// caller's. Otherwise the caller closes the lookup.
func (c *Cache) Look(m Model, r *infer.Request) (l Lookup, hit *infer.Response) {
	if c == nil || !m.Shared && (!m.Kept || c.store == nil) {
		return l, nil
	}
	started := time.Now()
	key, ok := KeyOf(m.Content, r)
	if !ok {
		return l, nil
	}
	l = Lookup{cache: c, key: key, pool: r.Pool, kept: m.Kept && c.store != nil, use: infer.CacheUse{Model: r.Model}}
	if m.Shared {
		l.share = &share{flights: &c.flights, key: key}
	}
	if l.asks = l.kept; l.asks && !c.store.waits() {
		hit = l.ask(context.Background())
	}
	if hit == nil && !l.asks {
		l.join()
	}
	l.use.Time = time.Since(started)
	return l, l.found(hit)
}

// Pending says that the response may be known elsewhere, or will be: the caller calls
// Find before it has the request executed.
func (l *Lookup) Pending() bool { return l.asks || l.follows != nil }

// Find waits until it is known whether the response of a pending lookup is. It returns
// nil where it is not, or soon after the end of ctx. A hit is the caller's.
func (l *Lookup) Find(ctx context.Context) *infer.Response {
	started := time.Now()
	var hit *infer.Response
	if l.asks {
		if hit = l.ask(ctx); hit == nil {
			l.join()
		}
		l.use.Time += time.Since(started)
	}
	for l.follows != nil && ctx.Err() == nil {
		if hit = l.follow(ctx); hit != nil {
			l.cache.shared.Inc()
			l.use.Time = time.Since(started)
		}
	}
	return l.found(hit)
}

// join has the request follow the equal one that is executed, or be executed itself.
func (l *Lookup) join() {
	if l.share != nil {
		l.follows = l.share.join()
	}
}

// follow waits for the response to the request that is followed. Without one the next
// of those that wait is executed, and the others follow it.
func (l *Lookup) follow(ctx context.Context) *infer.Response {
	select {
	case <-l.follows.landed:
	case <-ctx.Done():
		return nil
	}
	e := l.follows.entry
	if l.follows = nil; e != nil {
		return e.response()
	}
	l.join()
	return nil
}

// Observer is to be called with the first response to the request as it comes, which
// stays the caller's; nil where nobody needs to know. It does not block, and may be
// called after the end of the lookup.
func (l *Lookup) Observer() func(*infer.Response) {
	if l.share == nil {
		return nil
	}
	return l.share.land
}

func (l *Lookup) ask(ctx context.Context) *infer.Response {
	l.asks = false
	if e := l.cache.store.get(ctx, l.key); e != nil {
		return e.response()
	}
	return nil
}

// found ends the lookup where there is a hit.
func (l *Lookup) found(hit *infer.Response) *infer.Response {
	if hit != nil {
		l.use.Hit = true
		l.Close()
	}
	return hit
}

// Keep keeps a miss's response, which stays the caller's, unless it is too large or
// cannot be read here.
func (l *Lookup) Keep(r *infer.Response) {
	if l.cache == nil {
		return
	}
	if store := l.cache.store; l.kept {
		started := time.Now()
		if bytes, limit := weigh(r), store.limit(); bytes <= limit {
			store.set(l.key, func() *entry { return newEntry(r) })
		} else if n := l.cache.refused.Add(1); n&(n-1) == 0 && l.cache.TooLarge != nil {
			l.cache.TooLarge(bytes, limit)
		}
		l.use.Time += time.Since(started)
	}
	l.Close()
}

// Close ends a lookup, whose response is neither kept nor shared from now on.
func (l *Lookup) Close() {
	if l.share != nil {
		l.share.land(nil)
	}
	if c := l.cache; c != nil {
		c.report(l.pool, l.use)
	}
	*l = Lookup{}
}
