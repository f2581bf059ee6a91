package batches

import (
	"cmp"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Hello returns what the worker tells the scheduler of the epoch before their session. It reports false if the worker
// has ended. A scheduler with a lower epoch than the highest seen learns from the hello that it was deposed.
func (t *Table) Hello(epoch uint64) (held infer.Held, ok bool) {
	held, holders, ok := t.hello(epoch)
	for id, h := range holders { // after the batches, so that no ended sequence counts as live
		for _, s := range h.Sequences() {
			if s.Request == (infer.Work{}) && slices.Contains(h.ending, s.BatchSlot) {
				continue // another sequence may have its ID already
			}
			s.Instance, s.Model = id, h.model
			held.Sequences = append(held.Sequences, s)
		}
	}
	slices.SortFunc(held.Sequences, func(x, y infer.HeldSequence) int {
		return cmp.Or(cmp.Compare(x.Instance.Slot, y.Instance.Slot), cmp.Compare(x.BatchSlot, y.BatchSlot))
	})
	return held, ok
}

// modelHolder is a holder with the content of its instance, and the slots whose sequences end with a request that the
// instance has received.
type modelHolder struct {
	Holder
	model  infer.ModelRef
	ending []uint32
}

// hello returns a hello without sequences, and the holders of the granted instances' sequences.
func (t *Table) hello(epoch uint64) (held infer.Held, holders map[infer.InstanceID]modelHolder, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return held, nil, false
	}
	ending := make(map[infer.InstanceID][]uint32)
	for _, e := range t.batches {
		ending[e.instance] = append(ending[e.instance], e.ending...)
	}
	holders = make(map[infer.InstanceID]modelHolder, len(t.holders))
	for id, h := range t.holders {
		if in := t.grants[id]; in != nil {
			holders[id] = modelHolder{h, in.Model, ending[id]}
		}
	}
	t.epoch = max(t.epoch, epoch)
	t.session++
	t.waiting = nil
	held = infer.Held{Epoch: t.epoch, Started: t.done.Started()}
	for _, e := range t.batches {
		if e.arrived == 0 {
			continue
		}
		e.known = t.session
		r := infer.Running{Batch: e.id, Instance: e.instance, InstanceFree: e.free}
		for i := range e.units {
			if u := &e.units[i]; !e.free || !u.ended {
				r.Units, r.BatchSizes = append(r.Units, u.work), append(r.BatchSizes, u.size)
			}
		}
		held.Running = append(held.Running, r)
	}
	slices.SortFunc(held.Running, func(x, y infer.Running) int { return x.Batch.Compare(y.Batch) })
	return held, holders, true
}

// Connect starts the session of the last hello. It returns what to report first: grants of the free credits of
// instances that do not retire, and changes since the hello. It reports false if the scheduler of the epoch has been
// deposed or the worker has ended.
func (t *Table) Connect(epoch uint64) (grants []infer.Grant, reports []Report, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if epoch < t.epoch || t.closed {
		return nil, nil, false
	}
	t.epoch, t.started = epoch, true
	busy := make(map[infer.InstanceID]int)
	for _, e := range t.batches {
		if !e.free {
			busy[e.instance]++
		}
	}
	for id, in := range t.grants {
		if !in.retiring {
			g := in.Grant
			g.Credits -= busy[id]
			grants = append(grants, g)
		}
	}
	reports, t.waiting = t.waiting, nil
	return grants, reports, true
}

// Disconnect ends the session, and returns the retiring instances: they receive no more batches.
func (t *Table) Disconnect() (retired []infer.InstanceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started = false
	for id, in := range t.grants {
		if in.retiring {
			retired = append(retired, id)
			delete(t.grants, id)
		}
	}
	return retired
}

// Hold sets who holds the states of an instance's sequences, before the instance is granted; nil means that nobody
// holds them any more.
func (t *Table) Hold(id infer.InstanceID, h Holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h == nil {
		delete(t.holders, id)
		return
	}
	t.holders[id] = h
}

// Grant adds an instance, or changes the credits of a known one.
func (t *Table) Grant(g infer.Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in := t.grants[g.Instance]; in != nil {
		in.Credits += g.Credits
		return
	}
	t.grants[g.Instance] = &granted{Grant: g}
}

// Retire records that an instance must receive no more batches. It reports whether to ask the scheduler first; if
// not, no batch can arrive any more.
func (t *Table) Retire(id infer.InstanceID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	in := t.grants[id]
	if in == nil || !t.started {
		delete(t.grants, id)
		return false
	}
	in.retiring = true
	return true
}

// Retired records that the scheduler has released an instance.
func (t *Table) Retired(id infer.InstanceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.grants, id)
}

// Close records that the worker has ended: no session starts any more.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	clear(t.grants)
}

// Closed reports whether the worker has ended, and how many batches are not done.
func (t *Table) Closed() (closed bool, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed, len(t.batches)
}
