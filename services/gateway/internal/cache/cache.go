// Package cache answers equal requests with the result of one execution.
//
// A [Cache] stores responses by their [Key] in a [Store]. Each request goes through it by a [Lookup]: a hit
// returns a response, and after a miss the lookup stores the response of the model. If the model allows it, a
// request can also wait for an equal one that is already being executed. Stored and shared responses are
// copies, so that they hold no memory of workers.
package cache

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Store stores copies of responses: see [NewLocal] and [NewRemote]. It is safe for concurrent use.
type Store interface {
	// get returns the entry under a key, or nil. It ends with ctx.
	get(ctx context.Context, k Key) *entry
	// set stores the entry that made returns, which may be nil. It calls made before it returns, or not at all,
	// and does not wait.
	set(k Key, made func() *entry)
	// limit returns the maximum size of an entry in bytes.
	limit() int64
	// waits reports whether get waits for another process.
	waits() bool
}

// Cache answers requests that equal others. It is safe for concurrent use. A nil Cache answers none.
type Cache struct {
	// TooLarge is called for the 1st, 2nd, 4th, 8th and so on response that is too large for the store even
	// when that is empty, with its size in bytes. It may be nil. Set it before the first request.
	TooLarge func(bytes, limit int64)

	store   Store // nil stores none
	refused atomic.Uint64
	flights flights
	shared  prometheus.Counter
	report  func(pool string, u infer.CacheUse)
}

// New makes a cache on a store, which may be nil. report is called with the result for each request, from any
// goroutine.
func New(s Store, report func(pool string, u infer.CacheUse)) *Cache {
	return &Cache{store: s, flights: newFlights(), report: report, shared: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "nereid_gateway_shared_requests_total", Help: "Requests that were answered by the execution of an equal one in flight.",
	})}
}

// Collectors returns the metrics of a cache, without those of its store.
func (c *Cache) Collectors() []prometheus.Collector { return []prometheus.Collector{c.shared} }

// Model is what a lookup needs to know about a request's model.
type Model struct {
	Content string // see core.Version
	// Kept says that its responses may be stored, and Shared that requests in flight may share one.
	Kept, Shared bool
}

// Lookup is one request's passage through the cache, used by one goroutine at a time. The zero value belongs to
// a request that is not looked up.
type Lookup struct {
	cache   *Cache // set after a miss, until the response arrives
	key     Key
	pool    string
	kept    bool
	asks    bool    // the store has not been asked yet
	share   *share  // nil if the request shares no execution
	follows *flight // the flight that it waits for, or nil
	use     infer.CacheUse
}

// Look looks up the response to a checked request whose model allows it. The caller owns a hit. Without a hit
// the caller must close the lookup.
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

// Pending reports whether another process may have the response, or an execution in flight may produce it. The
// caller then calls Find before it has the request executed.
func (l *Lookup) Pending() bool { return l.asks || l.follows != nil }

// Find waits for the result of a pending lookup. It returns nil if there is no response, or soon after ctx
// ends. The caller owns a hit.
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

// join makes the request follow an equal one in flight, or lead if there is none.
func (l *Lookup) join() {
	if l.share != nil {
		l.follows = l.share.join()
	}
}

// follow waits for the response to the request that it follows. If there is none, the next waiting request is
// executed and the others follow it.
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

// Observer returns a function to call with the first response to the request when it arrives, or nil if nobody
// needs it. The function does not take the response over, does not block, and may be called after the lookup
// ends.
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

// found ends the lookup if there is a hit.
func (l *Lookup) found(hit *infer.Response) *infer.Response {
	if hit != nil {
		l.use.Hit = true
		l.Close()
	}
	return hit
}

// Keep stores the response after a miss, unless it is too large or cannot be read here. The caller still owns
// the response.
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

// Close ends a lookup. Its response is neither stored nor shared from now on.
func (l *Lookup) Close() {
	if l.share != nil {
		l.share.land(nil)
	}
	if c := l.cache; c != nil {
		c.report(l.pool, l.use)
	}
	*l = Lookup{}
}
