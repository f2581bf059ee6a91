// Package cache keeps responses of models for requests that are equal.
//
// A [Cache] has responses by their [Key] in a [Store], and each request goes through
// it by a [Lookup]: a hit is a response of its own, a miss keeps the response that
// its model gives. What is kept are copies, so that no memory of workers is held.
package cache

import (
	"context"
	"time"

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

// Cache answers requests that are equal to earlier ones. It is safe for concurrent
// use; nil answers none.
type Cache struct {
	store  Store
	report func(pool string, u infer.CacheUse)
}

// New makes a cache of what a store has. report is told what became of each request,
// from any goroutine.
func New(s Store, report func(pool string, u infer.CacheUse)) *Cache {
	return &Cache{store: s, report: report}
}

// Lookup is one request's way through the cache, by one goroutine at a time. The zero
// value is that of a request that is not looked up.
type Lookup struct {
	cache *Cache // of a miss whose response has not come
	key   Key
	pool  string
	asks  bool // the store is still to be asked
	use   infer.CacheUse
}

// Look looks for the response to a checked request, which may be cached, of a content
// of a model. A hit is the caller's. Otherwise the caller closes the lookup.
func (c *Cache) Look(content string, r *infer.Request) (l Lookup, hit *infer.Response) {
	if c == nil {
		return l, nil
	}
	started := time.Now()
	key, ok := KeyOf(content, r)
	if !ok {
		return l, nil
	}
	l = Lookup{cache: c, key: key, pool: r.Pool, asks: true, use: infer.CacheUse{Model: r.Model}}
	if !c.store.waits() {
		hit = l.ask(context.Background())
	}
	l.use.Time = time.Since(started)
	return l, l.found(hit)
}

// Pending says that the response may be known elsewhere: the caller calls Find before
// it has the request executed.
func (l *Lookup) Pending() bool { return l.asks }

// Find waits until it is known whether the response of a pending lookup is. It returns
// nil where it is not, or soon after the end of ctx. A hit is the caller's.
func (l *Lookup) Find(ctx context.Context) *infer.Response {
	started := time.Now()
	hit := l.ask(ctx)
	l.use.Time += time.Since(started)
	return l.found(hit)
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
	c := l.cache
	if c == nil {
		return
	}
	started := time.Now()
	if weigh(r) <= c.store.limit() {
		c.store.set(l.key, func() *entry { return newEntry(r) })
	}
	l.use.Time += time.Since(started)
	l.Close()
}

// Close ends a lookup, whose response is not kept from now on.
func (l *Lookup) Close() {
	if c := l.cache; c != nil {
		l.cache, l.asks = nil, false
		c.report(l.pool, l.use)
	}
}
