package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// policy orders what waits for one model and forms its batches. It owns the
// items between Add and their leaving by Remove or Form.
type policy interface {
	// Add takes an item in, or refuses it for a reason. It may set the item's
	// queue timeout.
	Add(it *Item) errs.Reason
	// Remove takes out a waiting item.
	Remove(it *Item)
	// Form moves the items of the next batch into b. If it leaves b empty,
	// asking again before the returned time is in vain unless items come or
	// go; 0 is never. Items that by the costs could not be done by their
	// deadline in the next batch are moved into b's late ones instead.
	Form(now mono.Time, b *Batch, c *costs) mono.Time
	// FormAhead does the same for an instance that will be free at begin, if the
	// batch will not take long and no other could be made of what comes until
	// then. Else it leaves all as it is.
	FormAhead(now, begin mono.Time, b *Batch, c *costs)
	// Ahead is how many batches, and of what size in rows, go before one that
	// a new item of this priority joins, and how many rows that one will have.
	Ahead(it *Item) (batches, size, rows int64)
	// Last is the waiting item that would go last; nil if none waits.
	Last() *Item
	// Len is the number of waiting items.
	Len() int
	// Oldest is when the one of them came that came first; 0 if none waits.
	Oldest() mono.Time
}

// policyFor returns the policy that a configuration asks for.
func policyFor(c *modelconfig.Config) policy {
	if c.Batching == nil {
		return &single{}
	}
	return newBatcher(c)
}

// hold keeps items of a model whose configuration has not arrived yet. It
// forms nothing.
type hold struct{ list }

func (h *hold) Add(it *Item) errs.Reason                     { h.push(it); return "" }
func (h *hold) Remove(it *Item)                              { h.remove(it) }
func (h *hold) Form(mono.Time, *Batch, *costs) mono.Time     { return 0 }
func (h *hold) FormAhead(_, _ mono.Time, _ *Batch, _ *costs) {}
func (h *hold) Ahead(*Item) (int64, int64, int64)            { return 0, 0, 0 }
func (h *hold) Last() *Item                                  { return h.tail }
func (h *hold) Len() int                                     { return h.n }
func (h *hold) Oldest() mono.Time                            { return h.oldest() }

// single gives every request an execution of its own, first come first
// served, without bounds: Triton's default scheduler.
type single struct{ list }

func (s *single) Add(it *Item) errs.Reason { s.push(it); return "" }
func (s *single) Remove(it *Item)          { s.remove(it) }
func (s *single) Last() *Item              { return s.tail }
func (s *single) Len() int                 { return s.n }
func (s *single) Oldest() mono.Time        { return s.oldest() }

func (s *single) Form(now mono.Time, b *Batch, c *costs) mono.Time {
	for it := s.head; it != nil; it = s.head {
		s.remove(it)
		if it.doneBy(now.Add(c.estimate(it.Rows))) {
			b.add(it)
			return 0
		}
		b.late = append(b.late, it)
	}
	return 0
}

func (s *single) FormAhead(_, begin mono.Time, b *Batch, c *costs) {
	it := s.head
	if takes, known := c.brief(it.Rows); known && it.mayGoAhead(begin.Add(takes)) {
		s.remove(it)
		b.add(it)
	}
}

func (s *single) Ahead(it *Item) (batches, size, rows int64) { return int64(s.n), it.Rows, it.Rows }
