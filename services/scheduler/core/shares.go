package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// shares say who goes first where policies put requests beside each other: bands first,
// strict but for the minimum that each is guaranteed, and in a band the tenant that has
// had the least device time for its weight. That is the virtual token counter of Sheng
// et al., "Fairness in Serving Large Language Models" (OSDI 2024), in device time instead
// of tokens: it holds over all models of the pool, and a tenant that comes back to the queue has
// saved up nothing.
type shares struct {
	tenants map[string]*tenant
	nobody  *tenant   // whose requests without a policy are
	waiting []*tenant // that have requests in queues
	floor   float64   // the counter of the tenant that left the queues last
	bands   []*band   // that there were, the highest first; the first is of requests without a policy
}

// tenant is one tenant of the pool.
type tenant struct {
	name    string
	weight  float64
	counter float64 // seconds of device time that it was given, by its weight
	queued  int     // items in queues
	flows   []*flow // that have items
}

// band is a priority band of the pool.
type band struct {
	number  uint32  // 1 is the highest; 0 is that of requests without a policy
	minimum float64 // share of the device time
	owed    float64 // seconds of device time that it lacks of its minimum
	queued  int     // items in queues
}

// mostOwed bounds what a band is owed, in seconds, and so for how long it goes before
// higher ones at a time.
const mostOwed = 0.05

// maxIdleTenants is how many tenants without requests are remembered: what they have had
// counts when they come back.
const maxIdleTenants = 4096

func newShares() shares {
	nobody := &tenant{weight: 1}
	return shares{tenants: map[string]*tenant{"": nobody}, nobody: nobody, bands: []*band{{}}}
}

// tenant returns the tenant of an item, with the weight that the item brings.
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

// weightOf is the weight that a share gives; 1 where it gives none.
func weightOf(s infer.Share) float64 { return float64(cmp.Or(s.Weight, 1000)) / 1000 }

func (s *shares) forgetIdle() {
	for name, t := range s.tenants {
		if t.queued == 0 && t != s.nobody {
			delete(s.tenants, name)
		}
	}
}

// band returns the band of an item, with the minimum that the item brings.
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

// enqueue counts an item that waits from now on. A tenant of which nothing waited has
// saved up nothing: it begins beside the one that has had the least.
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

// dequeue counts an item that does not wait any more.
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

// charge gives the tenants and bands of a batch what it is likely to take, in seconds.
func (s *shares) charge(b *Batch, takes float64) {
	if !s.policed() {
		return
	}
	for _, it := range b.Items {
		it.charged = share(takes*float64(it.BatchSize), float64(b.Size))
		s.give(it, it.charged)
	}
}

// correct replaces what the items of a batch were charged by what it has taken.
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

// refund takes back what an item was charged that has not run.
func (s *shares) refund(it *Item) {
	if it.tenant != nil {
		s.give(it, -it.charged)
		it.charged = 0
	}
}

// give charges an item's tenant, and owes the bands that wait their minimum.
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

// compareShares orders models by their next items, as far as policies say: less than 0 is
// that the first goes before.
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

// policed reports whether there are requests under a policy.
func (s *shares) policed() bool { return len(s.bands) > 1 }

// loadOf is how much waits of a tenant in a band, by its weight.
func (t *tenant) loadOf(b *band, size func(*load) int64) (n float64) {
	for _, f := range t.flows {
		if f.band == b {
			n += float64(size(&f.load))
		}
	}
	return n / t.weight
}

// overloader returns the flow that is to give up its last item so that a new one, which
// has joined the queues, has room: in the lowest band, of the tenant of which most waits for
// its weight. It is nil where that is the new item's own.
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
