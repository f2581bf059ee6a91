package perf

import (
	"math/rand/v2"
	"sync"
	"time"
)

// source hands out requests: classes are drawn by their shares, and the items of
// each come in turn. It is safe for concurrent use.
type source struct {
	mu      sync.Mutex
	rng     *rand.Rand // guarded by mu
	total   float64
	classes []sourced // guarded by mu
	// correlation is the id of the last sequence that started; guarded by mu.
	correlation uint64
}

// sourced is a class with its encoded items.
type sourced struct {
	share     float64
	sequences bool
	items     [][]*payload
	next      int
	slots     []*slot
	turn      int
}

// slot is a sequence that is active. Its requests are sent one at a time, in order.
type slot struct {
	source *source
	mu     sync.Mutex // held while a request of the sequence is in flight

	// These are guarded by the source's mu.
	items []*payload
	at    int
	id    uint64
}

// newSource encodes the items of all classes. Where a class has sequences, slots of
// them are active at a time.
func newSource(t *Target, classes []Class, slots int, seed uint64) (*source, error) {
	s := &source{rng: rand.New(rand.NewPCG(seed, 1)), correlation: uint64(time.Now().UnixNano())} //nolint:gosec // not for secrets
	for i := range classes {
		c := &classes[i]
		from := sourced{share: c.Share, sequences: c.Sequences}
		for _, items := range c.Items {
			var list []*payload
			for j := range items {
				p, err := encode(t, c, items[j].message(c), t.Timeout)
				if err != nil {
					return nil, err
				}
				list = append(list, p)
			}
			from.items = append(from.items, list)
		}
		if c.Sequences {
			for range slots {
				from.slots = append(from.slots, &slot{source: s})
			}
		}
		s.total += c.Share
		s.classes = append(s.classes, from)
	}
	return s, nil
}

// take returns the next request. A client of a closed loop, whose number is not
// negative, continues its own sequence; the sequences of an open loop take turns.
// The request of a sequence is chosen by [source.advance], when it can be sent.
func (s *source) take(client int) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	class := s.draw()
	from := &s.classes[class]
	if from.sequences {
		if client < 0 {
			from.turn++
			client = from.turn
		}
		return &call{class: class, slot: from.slots[client%len(from.slots)]}
	}
	return &call{class: class, payload: from.element()[0]}
}

// element is the next one of the data.
func (from *sourced) element() []*payload {
	from.next++
	return from.items[(from.next-1)%len(from.items)]
}

// advance chooses the request of a sequence. The caller has the slot's lock.
func (s *source) advance(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := c.slot
	if own.at == len(own.items) {
		s.correlation++
		own.items, own.at, own.id = s.classes[c.class].element(), 0, s.correlation
	}
	c.payload = own.items[own.at]
	c.step = &sequenceStep{id: own.id, start: own.at == 0, end: own.at == len(own.items)-1}
	own.at++
}

// restart gives up the sequence of a slot, as after a request that failed. The
// caller has the slot's lock.
func (s *source) restart(own *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own.items, own.at = nil, 0
}

func (s *source) draw() int {
	if len(s.classes) == 1 {
		return 0
	}
	at := s.rng.Float64() * s.total
	for i := range s.classes[:len(s.classes)-1] {
		if at -= s.classes[i].share; at < 0 {
			return i
		}
	}
	return len(s.classes) - 1
}
