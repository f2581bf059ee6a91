package core

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// TestSequenceHistories feeds random histories of sequences to a core, with workers
// that keep their states: each request runs on the state that has all those
// before it which were taken in, in a slot that no other sequence has.
func TestSequenceHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSequenceWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"submit":     s.submit,
			"submit too": s.submit,
			"cancel":     s.cancel,
			"complete":   s.complete,
			"offer":      s.offer,
			"retire":     s.retire,
			"return":     s.giveBack,
			"lose":       s.lose,
			"cut":        s.cut,
			"meet":       s.meet,
			"gateway":    s.loseGateway,
			"wait":       s.wait,
			"":           func(*rapid.T) { s.core.check() },
		})
		s.drain(t)
	})
}

var sequenceModel = infer.ModelRef{Name: "m", Version: 1, Generation: 1}

// sequenceWorld is the outside of a core: clients with sequences, and workers with
// their states.
type sequenceWorld struct {
	core    *Core
	now     mono.Time
	config  *modelconfig.Config
	last    uint64                       // request
	open    map[uint64]*clientRequest    // without an answer
	clients map[uint64]*clientSequence   // by correlation ID: the present one
	workers map[uint64]*sequenceWorker   // that live
	running map[uint64]*Batch            // by number
	states  map[sequencePlace]*slotState // on the workers
	next    uint64                       // worker
	fresh   uint64                       // the request that is being submitted
}

// clientSequence are the requests of one sequence that were taken in, in their
// order.
type clientSequence struct {
	id    uint64
	taken []uint64
	ended bool // as far as the client knows
}

type clientRequest struct {
	of      *clientSequence
	attempt uint32
	item    *Item
}

type sequenceWorker struct {
	slots     []uint32
	connected bool
	started   infer.Recent
}

type sequencePlace struct {
	instance infer.InstanceID
	slot     uint32
}

// slotState is the state of a sequence: what has been applied.
type slotState struct {
	of      *clientSequence
	applied []uint64
	busy    bool
}

func newSequenceWorld(t *rapid.T) *sequenceWorld {
	w := &sequenceWorld{
		core: New(Config{MaxRequests: 12}), now: scriptStart, open: map[uint64]*clientRequest{}, clients: map[uint64]*clientSequence{},
		workers: map[uint64]*sequenceWorker{}, running: map[uint64]*Batch{}, states: map[sequencePlace]*slotState{},
	}
	w.step(t, &Event{Kind: BecomeLeader})
	size := rapid.Int64Range(0, 3).Draw(t, "max")
	w.config = &modelconfig.Config{MaxBatchSize: size, Sequences: &modelconfig.SequenceBatching{
		Oldest: rapid.Bool().Draw(t, "oldest"), Slots: int(max(size, 1)), MaxIdleMicros: 500,
		MaxQueueDelayMicros: rapid.SampledFrom([]uint64{0, 100}).Draw(t, "delay"),
		MinSlotUtilization:  rapid.SampledFrom([]float32{0, 0.6}).Draw(t, "utilization"),
	}}
	if w.config.Sequences.Oldest {
		w.config.Sequences.Slots = rapid.IntRange(1, 4).Draw(t, "slots")
		if size > 1 && rapid.Bool().Draw(t, "preferred") {
			w.config.Sequences.PreferredSizes = []int64{size - 1}
		}
	}
	w.step(t, &Event{Kind: Configure, Model: &Model{Ref: sequenceModel, Config: w.config}})
	w.offer(t)
	return w
}

// offer has an instance come, of a worker or of a new one.
func (w *sequenceWorld) offer(t *rapid.T) {
	id := w.draw(t)
	if id == 0 || rapid.Bool().Draw(t, "new worker") {
		w.next++
		id = w.next
		w.workers[id] = &sequenceWorker{connected: true}
		w.step(t, &Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: id}, Held: &infer.Held{}})
	}
	if one := w.workers[id]; one.connected && len(one.slots) < 3 {
		one.slots = append(one.slots, uint32(len(one.slots)+1))
		w.grant(t, infer.InstanceID{Worker: id, Slot: one.slots[len(one.slots)-1]})
	}
}

// grant offers the credits of an instance that no batch has.
func (w *sequenceWorld) grant(t *rapid.T, id infer.InstanceID) {
	credits := 2
	for _, b := range w.running {
		if b.Instance == id {
			credits--
		}
	}
	w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: sequenceModel, Credits: credits, Pipelined: 1}})
}

// draw draws a living worker; 0 if there is none.
func (w *sequenceWorld) draw(t *rapid.T) uint64 {
	if len(w.workers) == 0 {
		return 0
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(w.workers))).Draw(t, "worker")
}

// submit sends the next request of a client, or a new one's first.
func (w *sequenceWorld) submit(t *rapid.T) {
	id := rapid.Uint64Range(1, 5).Draw(t, "sequence")
	s := w.clients[id]
	start := s == nil || s.ended || rapid.IntRange(0, 9).Draw(t, "again") == 0
	start = start && rapid.IntRange(0, 9).Draw(t, "start") > 0
	if s == nil || start {
		s = &clientSequence{id: id}
		w.clients[id] = s
	}
	w.last++
	s.ended = rapid.IntRange(0, 4).Draw(t, "end") == 0
	r := &clientRequest{of: s}
	it := w.send(t, w.last, r, infer.Sequence{ID: id, Start: start, End: s.ended}, rapid.SampledFrom([]time.Duration{0, 0, 0, 300 * time.Microsecond}).Draw(t, "deadline"))
	if it.sequence == nil {
		s.ended = true // refused: the client begins again
	}
}

func (w *sequenceWorld) send(t *rapid.T, number uint64, r *clientRequest, of infer.Sequence, deadline time.Duration) *Item {
	r.attempt++
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: number}, Attempt: r.attempt}
	it := &Item{
		Request: &infer.Request{Work: work, Sequence: of, Timeout: rapid.SampledFrom([]time.Duration{0, 200 * time.Microsecond}).Draw(t, "timeout")},
		Work:    work, Model: sequenceModel, BatchSize: 1, Bytes: 8, Enqueued: w.now,
	}
	if deadline > 0 {
		it.Deadline = w.now.Add(deadline)
	}
	r.item, w.open[number] = it, r
	r.of.taken = append(r.of.taken, number)
	w.fresh = number
	w.step(t, &Event{Kind: Submit, Item: it})
	w.fresh = 0
	return it
}

func (w *sequenceWorld) cancel(t *rapid.T) {
	n := rapid.Uint64Range(1, w.last+1).Draw(t, "request")
	w.step(t, &Event{Kind: Cancel, Unit: infer.Unit{Request: infer.RequestID{Origin: 1, Number: n}}})
}

// complete has a batch run to its end. Its worker may have no stream.
func (w *sequenceWorld) complete(t *rapid.T) {
	if len(w.running) > 0 {
		w.completeBatch(t, rapid.SampledFrom(slices.Sorted(maps.Keys(w.running))).Draw(t, "batch"))
	}
}

func (w *sequenceWorld) completeBatch(t *rapid.T, number uint64) {
	b := w.running[number]
	delete(w.running, number)
	worker := w.workers[b.Instance.Worker]
	for i, s := range b.Slots {
		state := w.states[sequencePlace{b.Instance, s.Index}]
		state.busy = false
		worker.started.Add(infer.RequestID{Origin: 1, Number: state.applied[len(state.applied)-1]})
		if s.Sequence.End {
			delete(w.states, sequencePlace{b.Instance, s.Index})
		}
		if it := b.Items[i]; it != nil && !worker.connected {
			delete(w.open, it.Work.Request.Number) // answered past the scheduler
		}
	}
	if worker.connected {
		w.step(t, &Event{Kind: InstanceFree, Ended: &infer.InstanceFree{Batch: infer.BatchID{Number: number}, Instance: b.Instance, Credits: 1, Executions: 1}})
	}
}

func (w *sequenceWorld) retire(t *rapid.T) {
	id := infer.InstanceID{Worker: w.draw(t), Slot: rapid.Uint32Range(1, 2).Draw(t, "slot")}
	if one := w.workers[id.Worker]; one != nil && one.connected {
		w.step(t, &Event{Kind: Retire, Instance: id})
	}
}

// giveBack has a worker give back a batch that it has not begun: its instance is
// gone, or it says that it has too many.
func (w *sequenceWorld) giveBack(t *rapid.T) {
	if len(w.running) == 0 {
		return
	}
	b := w.running[rapid.SampledFrom(slices.Sorted(maps.Keys(w.running))).Draw(t, "batch")]
	if !w.workers[b.Instance.Worker].connected {
		return
	}
	w.undo(b)
	reason := rapid.SampledFrom([]errs.Reason{errs.NoWorker, errs.Bug}).Draw(t, "reason")
	if reason == errs.NoWorker {
		w.close(b.Instance)
	}
	w.step(t, &Event{Kind: BatchReturned, Batches: []*infer.Batch{&b.Batch}, Reason: reason})
	if reason == errs.Bug && w.core.instances[b.Instance] != nil {
		w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: b.Instance, Model: sequenceModel, Credits: 1, Pipelined: 1}})
	}
}

// undo takes back what a batch that has not begun would have done.
func (w *sequenceWorld) undo(b *Batch) {
	delete(w.running, b.ID.Number)
	for _, s := range b.Slots {
		place := sequencePlace{b.Instance, s.Index}
		state := w.states[place]
		state.busy = false
		state.applied = state.applied[:len(state.applied)-1]
		if len(state.applied) == 0 {
			delete(w.states, place)
		}
	}
}

// close forgets an instance and its states.
func (w *sequenceWorld) close(id infer.InstanceID) {
	if one := w.workers[id.Worker]; one != nil {
		one.slots = slices.DeleteFunc(one.slots, func(slot uint32) bool { return slot == id.Slot })
	}
	maps.DeleteFunc(w.states, func(p sequencePlace, _ *slotState) bool { return p.instance == id })
}

func (w *sequenceWorld) lose(t *rapid.T) {
	if id := w.draw(t); id != 0 {
		delete(w.workers, id)
		maps.DeleteFunc(w.states, func(p sequencePlace, _ *slotState) bool { return p.instance.Worker == id })
		maps.DeleteFunc(w.running, func(_ uint64, b *Batch) bool { return b.Instance.Worker == id })
		w.step(t, &Event{Kind: WorkerLost, Instance: infer.InstanceID{Worker: id}})
	}
}

// cut ends a worker's stream: batches go on, or have not begun.
func (w *sequenceWorld) cut(t *rapid.T) {
	id := w.draw(t)
	if id == 0 || !w.workers[id].connected {
		return
	}
	one := w.workers[id]
	one.connected = false
	var under []*infer.Batch
	for _, number := range slices.Sorted(maps.Keys(w.running)) {
		b := w.running[number]
		if b.Instance.Worker != id {
			continue
		}
		under = append(under, &b.Batch)
		if rapid.Bool().Draw(t, "lost") {
			w.undo(b)
		}
	}
	w.step(t, &Event{Kind: WorkerDisconnected, Instance: infer.InstanceID{Worker: id}, Batches: under, Until: w.now.Add(time.Hour)})
}

// meet connects a worker again, which says what it has.
func (w *sequenceWorld) meet(t *rapid.T) {
	if id := w.draw(t); id != 0 && !w.workers[id].connected {
		w.connect(t, id)
	}
}

func (w *sequenceWorld) connect(t *rapid.T, id uint64) {
	one := w.workers[id]
	one.connected = true
	held := &infer.Held{Started: one.started.Started()}
	for _, number := range slices.Sorted(maps.Keys(w.running)) {
		if b := w.running[number]; b.Instance.Worker == id {
			r := infer.Running{Batch: infer.BatchID{Number: number}, Instance: b.Instance}
			for _, request := range b.Requests {
				r.Units = append(r.Units, request.Work)
			}
			held.Running = append(held.Running, r)
		}
	}
	for p, state := range w.states {
		if p.instance.Worker == id {
			held.Sequences = append(held.Sequences, infer.HeldSequence{
				Model: sequenceModel, Sequence: infer.Sequence{ID: state.of.id}, Instance: p.instance, BatchSlot: p.slot, Idle: time.Millisecond,
			})
		}
	}
	w.step(t, &Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: id}, Held: held})
	for _, slot := range one.slots {
		w.grant(t, infer.InstanceID{Worker: id, Slot: slot})
	}
}

// loseGateway has the gateway's connection end, which submits again what was handed
// off.
func (w *sequenceWorld) loseGateway(t *rapid.T) {
	var waits []uint64
	for n, r := range w.open {
		if r.item.batch == nil {
			waits = append(waits, n)
		}
	}
	w.step(t, &Event{Kind: GatewayDisconnected, Origin: 1})
	waits = slices.DeleteFunc(waits, func(n uint64) bool { return w.open[n] == nil }) // it was too late for them
	slices.Sort(waits)
	for _, n := range waits {
		if w.open[n].item.gateway != nil {
			t.Fatalf("request %d waits for a gateway that is gone", n)
		}
		of := w.open[n].of
		of.taken = slices.DeleteFunc(of.taken, func(other uint64) bool { return other == n })
	}
	for _, n := range waits {
		r := w.open[n]
		w.send(t, n, r, r.item.Request.Sequence, 0)
	}
}

func (w *sequenceWorld) wait(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.Int64Range(1, 400).Draw(t, "micros")) * time.Microsecond)
	w.step(t, &Event{Kind: Tick})
}

func (w *sequenceWorld) step(t *rapid.T, e *Event) {
	decisions, stored := slices.Clone(w.core.Step(w.now, e)), uint64(0)
	for i := range decisions {
		w.see(t, &decisions[i])
		if decisions[i].Kind == Record {
			stored = uint64(decisions[i].A)
		}
	}
	if stored != 0 {
		w.step(t, &Event{Kind: Recorded, Version: stored})
	}
}

func (w *sequenceWorld) see(t *rapid.T, d *Decision) {
	switch d.Kind {
	case Dispatch:
		w.dispatched(t, d.Members())
	case HandOff:
		if d.Reason != errs.PeerUnreachable {
			w.answered(t, d.Item())
		}
	case Refuse, Fail:
		n := d.Unit.Request.Number
		if n == w.fresh && d.Item().sequence == nil { // it was not taken in
			of := w.open[n].of
			of.taken = slices.DeleteFunc(of.taken, func(other uint64) bool { return other == n })
		}
		w.answered(t, d.Item())
	case Complete:
		if d.Unit != (infer.Unit{}) {
			w.answered(t, d.Item())
			break
		}
		for _, it := range d.Members().Items {
			if it != nil {
				w.answered(t, it)
			}
		}
	case InstanceRetired:
		w.close(d.Instance)
	}
}

// answered notes that a request has its answer. One that its worker has answered
// past the scheduler is handed off when that is heard.
func (w *sequenceWorld) answered(t *rapid.T, it *Item) {
	n := it.Work.Request.Number
	if r := w.open[n]; r != nil && r.item != it {
		t.Fatalf("request %d ended twice", n)
	}
	delete(w.open, n)
}

func (w *sequenceWorld) dispatched(t *rapid.T, b *Batch) {
	id := b.Instance
	if one := w.workers[id.Worker]; one == nil || !one.connected || !slices.Contains(one.slots, id.Slot) {
		t.Fatalf("batch %d went to %v, which is not there", b.ID.Number, id)
	}
	for _, other := range w.running {
		if other.Instance == id {
			t.Fatalf("batch %d went to %v beside batch %d", b.ID.Number, id, other.ID.Number)
		}
	}
	if len(b.Slots) != len(b.Items) || int64(len(b.Items)) > max(w.config.MaxBatchSize, 1) || int64(len(b.Items)) > b.Size {
		t.Fatalf("batch %d has %d items in %d slots, of size %d", b.ID.Number, len(b.Items), len(b.Slots), b.Size)
	}
	for i, it := range b.Items {
		w.applies(t, b, it, b.Slots[i])
	}
	w.running[b.ID.Number] = b
}

// applies runs a request on the state in its slot.
func (w *sequenceWorld) applies(t *rapid.T, b *Batch, it *Item, s infer.Slot) {
	n, place := it.Work.Request.Number, sequencePlace{b.Instance, s.Index}
	if int(s.Index) >= w.config.Sequences.Slots || !w.config.Sequences.Oldest && int64(s.Index) >= b.Size {
		t.Fatalf("request %d has slot %d of %d in a batch of size %d", n, s.Index, w.config.Sequences.Slots, b.Size)
	}
	of := w.open[n].of
	if s.Sequence.Start {
		if old := w.states[place]; old != nil && old.busy {
			t.Fatalf("request %d starts in slot %v, which runs request %v", n, place, old.applied)
		}
		w.states[place] = &slotState{of: of}
	}
	state := w.states[place]
	if state == nil || state.of != of || state.busy {
		t.Fatalf("request %d of sequence %d ran in slot %v on the state %+v", n, of.id, place, state)
	}
	if want := of.taken[:slices.Index(of.taken, n)]; !slices.Equal(state.applied, want) {
		t.Fatalf("request %d ran on a state that has %v, want %v", n, state.applied, want)
	}
	state.applied, state.busy = append(state.applied, n), true
}

// drain has everything run or end.
func (w *sequenceWorld) drain(t *rapid.T) {
	for _, id := range slices.Sorted(maps.Keys(w.workers)) {
		if !w.workers[id].connected {
			w.connect(t, id)
		}
	}
	w.next++
	w.workers[w.next] = &sequenceWorker{connected: true, slots: []uint32{1}}
	w.step(t, &Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: w.next}, Held: &infer.Held{}})
	w.grant(t, infer.InstanceID{Worker: w.next, Slot: 1})
	for range 400 {
		for len(w.running) > 0 {
			w.completeBatch(t, slices.Min(slices.Collect(maps.Keys(w.running))))
		}
		if wake := w.core.NextWake(); wake != 0 {
			w.now = max(w.now, wake)
			w.step(t, &Event{Kind: Tick})
		}
	}
	if len(w.open) != 0 || w.core.InFlight() != 0 {
		for n, r := range w.open {
			t.Logf("request %d waits in %+v", n, r.item.sequence)
		}
		for _, in := range w.core.instances {
			t.Logf("instance %+v", *in)
		}
		t.Fatalf("%d requests are still open, %d in flight", len(w.open), w.core.InFlight())
	}
	for _, m := range w.core.models {
		if n := len(m.sequences.live) + len(m.sequences.backlog); n > 0 {
			t.Fatalf("%d sequences live on though they are idle", n)
		}
	}
}

// Very many requests of a gateway that is gone are handed off in parts. Meanwhile
// none runs before those that come again.
func TestNothingOvertakesWhatIsBeingHandedOff(t *testing.T) {
	s := newScript()
	s.step(&Event{Kind: BecomeLeader})
	config := &modelconfig.Config{MaxBatchSize: 1, Sequences: &modelconfig.SequenceBatching{Slots: 1, MaxIdleMicros: 1e6}}
	s.step(&Event{Kind: Configure, Model: &Model{Ref: sequenceModel, Config: config}})
	s.connected(1)
	s.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 1}, Model: sequenceModel, Credits: 1}})
	for n := range uint64(2*stride + 2) {
		r := &infer.Request{Sequence: infer.Sequence{ID: 7, Start: n == 0}}
		s.step(&Event{Kind: Submit, Item: &Item{
			Request: r, Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: n + 1}, Attempt: 1}, Model: sequenceModel, BatchSize: 1, Enqueued: s.now,
		}})
	}
	s.step(&Event{Kind: GatewayDisconnected, Origin: 1})
	s.step(&Event{Kind: InstanceFree, Ended: &infer.InstanceFree{Batch: infer.BatchID{Number: 1}, Instance: infer.InstanceID{Worker: 1}, Credits: 1}})
	for !s.core.Settled() {
		s.step(&Event{Kind: Tick})
	}
	if n := s.core.Counts(); n.Completed != 1 || n.HandedOff != 2*stride+1 {
		t.Errorf("%+v, want one request to run and all others handed off", n)
	}
}
