// Package cache keeps responses of models for requests that are equal.
//
// A [Cache] has responses by their [Key], and each request goes through it by a
// [Lookup]: a hit is a response of its own, a miss keeps the response that its
// model gives. What is kept are copies, so that no memory of workers is held, and
// they are charged with their bytes.
package cache

import (
	"slices"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/maypok86/otter/v2/stats"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Cache keeps responses within a bound in bytes. It is safe for concurrent use; nil
// keeps none.
type Cache struct {
	size    int64
	entries *otter.Cache[Key, *entry]
	counter *stats.Counter
	spent   spent
	report  func(pool string, u infer.CacheUse)
}

// New makes a cache of at most size bytes, more than 0. report is told what became of
// each request, from any goroutine.
func New(size int64, report func(pool string, u infer.CacheUse)) *Cache {
	c := &Cache{size: size, counter: stats.NewCounter(), report: report}
	c.entries = otter.Must(&otter.Options[Key, *entry]{
		MaximumWeight: uint64(size),
		Weigher:       func(_ Key, e *entry) uint32 { return uint32(e.bytes) },
		StatsRecorder: c.counter,
		// Evictions are done by who inserts, so that the bound holds when it returns.
		Executor: func(evict func()) { evict() },
	})
	return c
}

// Lookup is one request's way through the cache. The zero value is that of a request
// that is not looked up.
type Lookup struct {
	cache *Cache // of a miss whose response has not come
	key   Key
	pool  string
	use   infer.CacheUse
}

// Look looks for the response to a checked request, which may be cached. A hit is the
// caller's. After a miss the caller closes the lookup.
func (c *Cache) Look(r *infer.Request) (l Lookup, hit *infer.Response) {
	if c == nil {
		return l, nil
	}
	started := time.Now()
	key, ok := KeyOf(r)
	if !ok {
		return l, nil
	}
	e, known := c.entries.GetIfPresent(key)
	use := infer.CacheUse{Model: r.Model, Hit: known, Time: time.Since(started)}
	c.spent.lookups.add(use.Time)
	if known {
		c.report(r.Pool, use)
		return l, e.response()
	}
	return Lookup{cache: c, key: key, pool: r.Pool, use: use}, nil
}

// Keep keeps a miss's response, which stays the caller's, unless it is too large or
// cannot be read here.
func (l *Lookup) Keep(r *infer.Response) {
	c := l.cache
	if c == nil {
		return
	}
	started := time.Now()
	if e := newEntry(r, min(c.size, maxEntry)); e != nil {
		c.entries.Set(l.key, e)
	}
	took := time.Since(started)
	c.spent.insertions.add(took)
	l.use.Time += took
	l.Close()
}

// Close ends a lookup, whose response is not kept from now on.
func (l *Lookup) Close() {
	if c := l.cache; c != nil {
		l.cache = nil
		c.report(l.pool, l.use)
	}
}

// maxEntry is the largest entry, in bytes: a weight has 32 bits.
const maxEntry = 1<<32 - 1

// What an entry is charged with beside its data and texts, in bytes: about what the
// values take that hold them.
const (
	entryBytes     = 256
	outputBytes    = 256
	parameterBytes = 64
)

// entry is a copy of a response. It does not change.
type entry struct {
	outputs    []infer.Tensor // on the heap
	parameters []infer.Parameter
	bytes      int64
}

// newEntry copies a response; nil where it takes more than a number of bytes or its
// outputs lie elsewhere.
func newEntry(r *infer.Response, most int64) *entry {
	e := &entry{parameters: slices.Clone(r.Parameters), bytes: entryBytes + r.OutputBytes()}
	for i := range r.Outputs {
		e.bytes += outputBytes + int64(len(r.Outputs[i].Name)+8*len(r.Outputs[i].Shape))
	}
	for _, p := range r.Parameters {
		text, _ := p.Value.(string)
		e.bytes += parameterBytes + int64(len(p.Key)+len(text))
	}
	if e.bytes > most {
		return nil
	}
	for i := range r.Outputs {
		out := r.Outputs[i]
		data, err := out.Data.Bytes()
		if err != nil {
			return nil
		}
		out.Shape, out.Data = slices.Clone(out.Shape), tensor.InHeap(slices.Clone(data))
		e.outputs = append(e.outputs, out)
	}
	return e
}

// response is a final response of the entry, whose data it shares.
func (e *entry) response() *infer.Response {
	r := &infer.Response{Final: true, Outputs: slices.Clone(e.outputs), Parameters: slices.Clone(e.parameters)}
	for i := range r.Outputs {
		r.Outputs[i].Shape, r.Outputs[i].Data = slices.Clone(r.Outputs[i].Shape), r.Outputs[i].Data.Retain()
	}
	return r
}
