package core

import "github.com/nereid-serving/nereid/libs/mono"

// timer is one wait in the core's heap: an item's deadline, a batch's delay, a worker's absence. It is embedded in
// what it wakes, so arming it allocates nothing.
type timer struct {
	at  mono.Time
	seq uint64 // breaks ties in the order of arming
	pos int    // index in the heap plus one; 0 when not armed
	// One of these is set; none is set in the pool's own timer.
	item     *Item
	model    *model
	worker   *worker
	sequence *sequence
}

// timers is a binary heap of armed timers, the earliest first.
type timers struct {
	heap []*timer
	seq  uint64
}

// next returns the earliest time, or 0.
func (h *timers) next() mono.Time {
	if len(h.heap) == 0 {
		return 0
	}
	return h.heap[0].at
}

// set arms t for at, or disarms it if at is 0.
func (h *timers) set(t *timer, at mono.Time) {
	switch {
	case at == 0:
		h.remove(t)
		return
	case t.pos > 0 && t.at == at:
		return
	}
	h.remove(t)
	h.seq++
	t.at, t.seq = at, h.seq
	h.heap = append(h.heap, t)
	t.pos = len(h.heap)
	h.up(t.pos - 1)
}

// due removes and returns the earliest timer if its time has come.
func (h *timers) due(now mono.Time) *timer {
	if len(h.heap) == 0 || h.heap[0].at > now {
		return nil
	}
	t := h.heap[0]
	h.remove(t)
	return t
}

func (h *timers) remove(t *timer) {
	if t.pos == 0 {
		return
	}
	i, last := t.pos-1, len(h.heap)-1
	h.swap(i, last)
	h.heap[last] = nil
	h.heap = h.heap[:last]
	t.pos = 0
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h *timers) less(i, j int) bool {
	a, b := h.heap[i], h.heap[j]
	return a.at < b.at || (a.at == b.at && a.seq < b.seq)
}

func (h *timers) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].pos, h.heap[j].pos = i+1, j+1
}

func (h *timers) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *timers) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.heap) {
			return
		}
		if child+1 < len(h.heap) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}
