package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// shares decide who goes first where policies rank requests: bands first, strictly except for the minimum that each
// is guaranteed, and within a band the tenant that has had the least device time relative to its weight. This is the
// virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with device time
// instead of tokens: it spans all models of the pool, and a tenant that returns to the queue has saved up nothing.
type shares struct {
	tenants map[string]*tenant
	nobody  *tenant   // the tenant of requests without a policy
	waiting []*tenant // that have requests in queues
	floor   float64   // the counter of the tenant that left the queues last
	bands   []*band   // that have occurred, highest first; the first is for requests without a policy
}

// tenant is one tenant of the pool.
type tenant struct {
	name    string
	weight  float64
	counter float64 // seconds of device time received, divided by its weight
	queued  int     // items in queues
	flows   []*flow // that have items
}

// band is a priority band of the pool.
type band struct {
	number  uint32  // 1 is the highest; 0 is for requests without a policy
	minimum float64 // share of the device time
	owed    float64 // seconds of device time by which it falls short of its minimum
	queued  int     // items in queues
}

// mostOwed caps what a band is owed, in seconds, and so how long it can go before higher bands at a time.
const mostOwed = 0.05

// maxIdleTenants is how many tenants without requests are remembered: what they have received still counts when they
// return.
const maxIdleTenants = 4096

func newShares() shares {
	nobody := &tenant{weight: 1}
	return shares{tenants: map[string]*tenant{"": nobody}, nobody: nobody, bands: []*band{{}}}
}

// tenant returns the tenant of a request, and sets its weight to the request's.
func (s *shares) tenant(r *infer.Request) *tenant {
	if r.Tenant == "" {
		return s.nobody
	}
	t := s.tenants[r.Tenant]
	if t == nil {
		if len(s.tenants) >= len(s.waiting)+maxIdleTenants {
			s.forgetIdle()
		}
		t = &tenant{name: r.Tenant}
		s.tenants[r.Tenant] = t
	}
	t.weight = weightOf(r.Share)
	return t
}

// weightOf returns the weight that a share sets; 1 if it sets none.
func weightOf(s infer.Share) float64 { return float64(cmp.Or(s.Weight, 1000)) / 1000 }

func (s *shares) forgetIdle() {
	for name, t := range s.tenants {
		if t.queued == 0 && t != s.nobody {
			delete(s.tenants, name)
		}
	}
}

// band returns the band of a request, and sets its minimum to the request's.
func (s *shares) band(share infer.Share) *band {
	if share.Band == 0 {
		return s.bands[0]
	}
	at, ok := slices.BinarySearchFunc(s.bands, share.Band, func(b *band, number uint32) int { return cmp.Compare(b.number, number) })
	if !ok {
		s.bands = slices.Insert(s.bands, at, &band{number: share.Band})
	}
	b := s.bands[at]
	b.minimum = float64(share.Minimum) / 1000
	return b
}

// enqueue counts an item that starts to wait. A tenant with nothing waiting has saved up nothing: it starts level
// with the waiting tenant that has received the least.
func (s *shares) enqueue(f *flow) {
	t := f.tenant
	f.band.queued++
	if t.queued++; t.queued > 1 {
		return
	}
	least := s.floor
	for i, other := range s.waiting {
		if i == 0 || other.counter < least {
			least = other.counter
		}
	}
	t.counter = max(t.counter, least)
	s.waiting = append(s.waiting, t)
}

// dequeue counts an item that no longer waits.
func (s *shares) dequeue(f *flow) {
	t := f.tenant
	if f.band.queued--; f.band.queued == 0 {
		f.band.owed = min(f.band.owed, 0)
	}
	if t.queued--; t.queued > 0 {
		return
	}
	i := slices.Index(s.waiting, t)
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.floor = max(s.floor, t.counter)
}

// charge charges the tenants and bands of a batch the time that it is expected to take, in seconds.
func (s *shares) charge(b *Batch, takes float64) {
	if !s.policed() {
		return
	}
	for _, it := range b.Items {
		it.charged = share(takes*float64(it.BatchSize), float64(b.Size))
		s.give(it, it.charged)
	}
}

// correct replaces what the items of a batch were charged by what the batch has taken.
func (s *shares) correct(b *Batch, took time.Duration) {
	if !s.policed() {
		return
	}
	for _, it := range b.Items {
		if it != nil && it.tenant != nil {
			cost := share(took.Seconds()*float64(it.BatchSize), float64(b.Size))
			s.give(it, cost-it.charged)
			it.charged = cost
		}
	}
}

// refund returns what an item was charged that has not run.
func (s *shares) refund(it *Item) {
	if it.tenant != nil {
		s.give(it, -it.charged)
		it.charged = 0
	}
}

// give charges an item's tenant, and credits waiting bands with their minimum.
func (s *shares) give(it *Item, cost float64) {
	if it.tenant == nil {
		return
	}
	it.tenant.counter += cost / it.tenant.weight
	for _, b := range s.bands {
		if b == it.band {
			b.owed -= cost
		}
		if b.minimum > 0 && (b.queued > 0 || cost < 0) {
			b.owed += b.minimum * cost
		}
		b.owed = min(max(b.owed, -mostOwed), mostOwed)
	}
}

// before reports whether a band goes before another.
func (b *band) before(other *band) bool {
	if a, o := b.isOwed(), other.isOwed(); a != o {
		return a
	}
	return b.number < other.number
}

// isOwed reports whether a band lacks some of its minimum.
func (b *band) isOwed() bool { return b.minimum > 0 && b.owed > 0 }

// compareShares orders models by their next items, as policies decide: a negative result means that the first goes
// before the other.
func (c *Core) compareShares(m, other *model) int {
	if !c.shares.policed() {
		return 0
	}
	a, b := m.queue.first(c.now).flow, other.queue.first(c.now).flow
	switch {
	case a.goesBefore(b, a.tenant.counter, b.tenant.counter):
		return -1
	case b.goesBefore(a, b.tenant.counter, a.tenant.counter):
		return 1
	}
	return 0
}

// policed reports whether there have been requests under a policy.
func (s *shares) policed() bool { return len(s.bands) > 1 }

// loadOf returns how much waits of a tenant in a band, relative to its weight.
func (t *tenant) loadOf(b *band, size func(*load) int64) (n float64) {
	for _, f := range t.flows {
		if f.band == b {
			n += float64(size(&f.load))
		}
	}
	return n / t.weight
}

// overloader returns the flow that must drop its last item to make room for a new one, which has already joined the
// queues: in the lowest band, the flow of the tenant with the longest queue relative to its weight. It returns nil if
// that is the new item's own tenant.
func (s *shares) overloader(it *Item, size func(*load) int64) *flow {
	lowest := s.bands[0]
	for _, b := range s.bands {
		if b.queued > 0 {
			lowest = b
		}
	}
	if it.band != lowest && it.band.number > lowest.number {
		return nil
	}
	var most *tenant
	load := 0.0
	for _, t := range s.waiting {
		if n := t.loadOf(lowest, size); n > load || n == load && n > 0 && t == it.tenant {
			most, load = t, n
		}
	}
	if most == nil || it.band == lowest && most == it.tenant {
		return nil
	}
	var largest *flow
	for _, f := range most.flows {
		if f.band == lowest && (largest == nil || size(&f.load) > size(&largest.load)) {
			largest = f
		}
	}
	return largest
}
