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
	"github.com/nereid-serving/nereid/libs/tensor"
)

// TestHistories feeds random histories to a core and holds every decision
// against what the package promises.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"submit":   w.submit,
			"cancel":   w.cancel,
			"complete": w.complete,
			"grant":    w.grant,
			"retire":   w.retire,
			"away":     w.leave,
			"lose":     w.lose,
			"return":   w.giveBack,
			"remove":   w.remove,
			"gateway":  w.loseGateway,
			"memory":   w.memory,
			"restore":  w.configure,
			"wait":     w.wait,
			"follow":   w.follow,
			"":         w.balance,
		})
		w.drain(t)
	})
}

// world is the outside of a core: what was sent to it and what came back.
type world struct {
	core    *Core
	now     mono.Time
	configs map[infer.ModelRef]*modelconfig.Config

	lastRequest uint64
	gone        uint64 // the gateway that has gone last
	lastSlot    uint32
	open        map[uint64]*Item                    // not ended, by request number
	running     map[uint64]*Batch                   // by batch number
	granted     map[infer.InstanceID]infer.ModelRef // not retired or lost
	credits     map[infer.InstanceID]int
	pipelined   map[infer.InstanceID]int
	total       map[infer.InstanceID]int // credits with which instances were offered
	withdrawn   map[infer.InstanceID]int // credits of instances that are away
	newest      map[place]uint64         // latest number dispatched, for the order of arrival
	requeued    map[uint64]bool          // by request number: they lose their place
	waiting     map[infer.ModelRef]load  // before the present step
}

// place is where a request waits: what is there goes in order of arrival.
type place struct {
	model infer.ModelRef
	level int
}

var poolLimits = Config{MaxRequests: 6, MaxBytes: 30}

func newWorld(t *rapid.T) *world {
	w := &world{
		core: New(poolLimits), now: scriptStart,
		configs: map[infer.ModelRef]*modelconfig.Config{},
		open:    map[uint64]*Item{}, running: map[uint64]*Batch{},
		granted: map[infer.InstanceID]infer.ModelRef{}, credits: map[infer.InstanceID]int{}, pipelined: map[infer.InstanceID]int{}, total: map[infer.InstanceID]int{}, withdrawn: map[infer.InstanceID]int{},
		newest: map[place]uint64{}, requeued: map[uint64]bool{},
	}
	w.step(t, &Event{Kind: BecomeLeader})
	for _, name := range []string{"a", "b"} {
		ref := infer.ModelRef{Name: name, Version: 1, Generation: 1}
		w.configs[ref] = drawConfig(t)
		w.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: w.configs[ref]}})
		w.measured(t, ref)
		w.offer(t, 1, ref, 1, rapid.IntRange(0, 2).Draw(t, "pipelined"))
	}
	return w
}

// measured may have what a model takes known from the start.
func (w *world) measured(t *rapid.T, ref infer.ModelRef) {
	each := rapid.SampledFrom([]time.Duration{0, 20 * time.Microsecond, 20 * time.Microsecond, 400 * time.Microsecond}).Draw(t, "takes")
	for size := range maxSize(w.configs[ref]) {
		w.core.models[ref].costsOn("").learn(size+1, shape{}, time.Duration(size+1)*each)
	}
}

func drawConfig(t *rapid.T) *modelconfig.Config {
	c := &modelconfig.Config{
		MaxBatchSize: rapid.Int64Range(0, 5).Draw(t, "max"),
		Inputs:       []modelconfig.IO{{Name: "x", Dims: tensor.Shape{-1}}},
	}
	if rapid.Bool().Draw(t, "dynamic") {
		c.Batching = &modelconfig.DynamicBatching{
			MaxQueueDelayMicros: rapid.SampledFrom([]uint64{0, 100}).Draw(t, "delay"),
			PriorityLevels:      rapid.Uint64Range(0, 3).Draw(t, "levels"),
			DefaultPriority:     1,
			DefaultPolicy:       drawPolicy(t),
			Policies:            map[uint64]modelconfig.QueuePolicy{2: drawPolicy(t)},
		}
		for size := int64(1); size <= c.MaxBatchSize; size++ {
			if rapid.Bool().Draw(t, "preferred") {
				c.Batching.PreferredSizes = append(c.Batching.PreferredSizes, size)
			}
		}
	}
	return c
}

func drawPolicy(t *rapid.T) modelconfig.QueuePolicy {
	return modelconfig.QueuePolicy{
		MaxQueueSize:         rapid.Uint32Range(0, 4).Draw(t, "queue"),
		DefaultTimeoutMicros: rapid.SampledFrom([]uint64{0, 150}).Draw(t, "timeout"),
		AllowTimeoutOverride: rapid.Bool().Draw(t, "override"),
		Delay:                rapid.Bool().Draw(t, "behind"),
	}
}

func (w *world) drawModel(t *rapid.T) infer.ModelRef {
	return infer.ModelRef{Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), Version: 1, Generation: 1}
}

func (w *world) submit(t *rapid.T) {
	ref := w.drawModel(t)
	w.lastRequest++
	size := rapid.Int64Range(1, maxSize(w.configs[ref])).Draw(t, "size")
	it := &Item{
		Request: &infer.Request{
			Priority: rapid.Uint64Range(0, 4).Draw(t, "priority"),
			Timeout:  rapid.SampledFrom([]time.Duration{0, 50 * time.Microsecond}).Draw(t, "own timeout"),
			Inputs:   []infer.Tensor{{Name: "x", Shape: tensor.Shape{size, rapid.Int64Range(1, 2).Draw(t, "width")}}},
		},
		Work:  infer.Work{Request: infer.RequestID{Origin: w.lastRequest % 2, Number: w.lastRequest}},
		Model: ref, BatchSize: size, Bytes: 8 * size, Enqueued: w.now,
	}
	if d := rapid.SampledFrom([]time.Duration{0, 0, 120 * time.Microsecond}).Draw(t, "deadline"); d > 0 {
		it.Deadline = w.now.Add(d)
	}
	it.Request.Work = it.Work
	w.open[w.lastRequest] = it
	w.step(t, &Event{Kind: Submit, Item: it})
}

func (w *world) cancel(t *rapid.T) {
	n := rapid.Uint64Range(1, w.lastRequest+1).Draw(t, "request")
	w.step(t, &Event{Kind: Cancel, Unit: infer.Unit{Request: infer.RequestID{Origin: n % 2, Number: n}}})
	if it := w.open[n]; it != nil && it.batch == nil {
		t.Fatalf("request %d waits on after its cancellation", n)
	}
}

func (w *world) complete(t *rapid.T) {
	number := rapid.Uint64Range(1, w.core.lastBatch+1).Draw(t, "batch")
	w.completeBatch(t, number)
	if w.running[number] != nil {
		t.Fatalf("batch %d has not ended with its completion", number)
	}
}

// completeBatch completes a batch that may not run, or not any more.
func (w *world) completeBatch(t *rapid.T, number uint64) {
	done := &infer.InstanceFree{Batch: infer.BatchID{Epoch: w.core.epoch, Number: number}}
	if b := w.running[number]; b != nil {
		done.Instance, done.Credits, done.Executions = b.Instance, 1, 1
		done.Timing = infer.Timing{Start: w.now.Add(-time.Duration(b.Size) * 20 * time.Microsecond), Done: w.now}
		w.credits[done.Instance]++
	}
	w.step(t, &Event{Kind: InstanceFree, Ended: done})
}

func (w *world) grant(t *rapid.T) {
	w.offer(t, rapid.Uint64Range(1, 2).Draw(t, "worker"), w.drawModel(t), rapid.IntRange(1, 2).Draw(t, "credits"), rapid.IntRange(0, 2).Draw(t, "pipelined"))
}

// offer grants the credits of a new instance, for batches that run and for
// pipelined ones.
func (w *world) offer(t *rapid.T, worker uint64, of infer.ModelRef, atOnce, pipelined int) {
	w.lastSlot++
	id := infer.InstanceID{Worker: worker, Slot: w.lastSlot}
	w.granted[id], w.credits[id], w.total[id], w.pipelined[id] = of, atOnce+pipelined, atOnce+pipelined, pipelined
	if one := w.core.workers[worker]; one == nil || !one.connected {
		w.step(t, &Event{Kind: WorkerConnected, Instance: id, Held: &infer.Held{}})
	}
	w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: of, Credits: w.credits[id], Pipelined: pipelined}})
}

// leave has an instance go away with all of its credits, or come back.
func (w *world) leave(t *rapid.T) {
	id := infer.InstanceID{Worker: rapid.Uint64Range(1, 2).Draw(t, "worker"), Slot: rapid.Uint32Range(1, w.lastSlot+1).Draw(t, "slot")}
	of, ok := w.granted[id]
	if !ok {
		return
	}
	credits := w.withdrawn[id]
	if delete(w.withdrawn, id); credits == 0 {
		w.withdrawn[id], credits = w.total[id], -w.total[id]
	}
	w.credits[id] += credits
	w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: of, Credits: credits, Pipelined: w.pipelined[id]}})
}

func (w *world) retire(t *rapid.T) {
	id := infer.InstanceID{Worker: rapid.Uint64Range(1, 2).Draw(t, "worker"), Slot: rapid.Uint32Range(1, w.lastSlot+1).Draw(t, "slot")}
	w.step(t, &Event{Kind: Retire, Instance: id})
}

func (w *world) lose(t *rapid.T) {
	worker := rapid.Uint64Range(1, 2).Draw(t, "worker")
	for id := range w.granted {
		if id.Worker == worker {
			delete(w.granted, id)
			delete(w.credits, id)
		}
	}
	w.step(t, &Event{Kind: WorkerLost, Instance: infer.InstanceID{Worker: worker}})
}

// giveBack has a worker give back a batch, whose instance is gone or has, as it
// says, more batches than it may have: then the credit was its own mistake, and
// there is one less. One out of reach takes no batches before it
// offers new instances.
func (w *world) giveBack(t *rapid.T) {
	b := w.running[rapid.Uint64Range(1, w.core.lastBatch+1).Draw(t, "batch")]
	if b == nil {
		return
	}
	reason, id := rapid.SampledFrom([]errs.Reason{errs.NoWorker, errs.PeerUnreachable, errs.Bug}).Draw(t, "reason"), b.Instance
	if w.withdrawn[id] > 0 {
		reason = errs.InstanceAway
	}
	switch reason {
	case errs.InstanceAway:
		w.credits[id]++
	case errs.NoWorker:
		delete(w.granted, id)
		delete(w.credits, id)
	case errs.PeerUnreachable:
		for other := range w.credits {
			if other.Worker == id.Worker {
				w.credits[other] = 0
			}
		}
	default:
		w.pipelined[id] = max(w.pipelined[id]-1, 0)
	}
	w.step(t, &Event{Kind: BatchReturned, Batches: []*infer.Batch{&b.Batch}, Reason: reason})
}

// loseGateway has a gateway go: nothing waits for it any more.
func (w *world) loseGateway(t *rapid.T) {
	origin := rapid.Uint64Range(0, 1).Draw(t, "origin")
	w.gone = origin
	w.step(t, &Event{Kind: GatewayDisconnected, Origin: origin})
	for n, it := range w.open {
		if it.Work.Request.Origin == origin && it.batch == nil {
			t.Fatalf("request %d waits on for a gateway that has gone", n)
		}
	}
}

// memory has a worker report what its batches may have.
func (w *world) memory(t *rapid.T) {
	w.report(t, rapid.Uint64Range(1, 2).Draw(t, "worker"), rapid.Int64Range(0, 40).Draw(t, "memory"))
}

func (w *world) report(t *rapid.T, worker uint64, bytes int64) {
	w.step(t, &Event{Kind: MemoryReported, Instance: infer.InstanceID{Worker: worker}, Memory: bytes})
}

// remove takes a model out of the repository.
func (w *world) remove(t *rapid.T) {
	w.step(t, &Event{Kind: Remove, Model: &Model{Ref: w.drawModel(t)}})
}

// configure brings a model back.
func (w *world) configure(t *rapid.T) {
	ref := w.drawModel(t)
	w.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: w.configs[ref]}})
}

func (w *world) wait(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.Int64Range(1, 200).Draw(t, "micros")) * time.Microsecond)
	w.step(t, &Event{Kind: Tick})
	if next := w.core.NextWake(); next != 0 && next <= w.now {
		t.Fatalf("after a tick at %v the next wake-up %v is not in the future", w.now, next)
	}
}

// follow ticks when the core asks for it, or a bit later, and at no other time,
// as the driver does, until it asks no more. Then nothing waits beside an instance that could
// take it, whatever the policy.
func (w *world) follow(t *rapid.T) {
	for wake := w.core.NextWake(); wake != 0; wake = w.core.NextWake() {
		w.now = max(w.now, wake).Add(time.Duration(rapid.Int64Range(0, 30).Draw(t, "late")) * time.Microsecond)
		w.step(t, &Event{Kind: Tick})
	}
	for n, it := range w.open {
		if it.batch == nil && it.model.batcher != nil && free(it) {
			t.Fatalf("request %d of model %v waits for ever beside a free instance", n, it.Model)
		}
	}
}

// free reports whether an item could run at once.
func free(it *Item) bool {
	in, _ := it.model.free(it.model.queue.first(0).Bytes)
	return in != nil
}

func (w *world) step(t *rapid.T, e *Event) {
	w.waiting = map[infer.ModelRef]load{}
	for ref, m := range w.core.models {
		w.waiting[ref] = m.queue.load
	}
	decisions, stored := slices.Clone(w.core.Step(w.now, e)), uint64(0)
	for i := range decisions {
		w.see(t, &decisions[i])
		if decisions[i].Kind == Record {
			stored = uint64(decisions[i].A)
		}
	}
	if n := w.core.waiting; n.requests > poolLimits.MaxRequests || n.bytes > poolLimits.MaxBytes && n.requests > 1 {
		t.Fatalf("%+v wait, beyond %+v", n, poolLimits)
	}
	if stored != 0 {
		w.step(t, &Event{Kind: Recorded, Version: stored})
	}
}

func (w *world) see(t *rapid.T, d *Decision) {
	switch d.Kind {
	case Dispatch:
		w.dispatched(t, d.Members())
	case Refuse, Fail, HandOff:
		if d.Batch != (infer.BatchID{}) {
			delete(w.running, d.Batch.Number)
		}
		w.ended(t, d.Item())
		switch {
		case d.Reason == errs.QueueFull:
			w.tookItsShare(t, d.Item())
		case d.Reason == errs.PeerUnreachable && d.Unit.Request.Origin != w.gone:
			t.Fatalf("request %d was dropped, and its gateway is there", d.Unit.Request.Number)
		}
	case Requeue:
		delete(w.running, d.Batch.Number)
		for _, it := range d.Members().Items {
			w.requeued[it.Work.Request.Number] = true
		}
	case Abort:
		if w.running[d.Batch.Number] != d.Members() {
			t.Fatalf("abort in batch %d, which does not run", d.Batch.Number)
		}
	case Complete:
		for _, it := range d.Members().Items {
			w.ended(t, it)
		}
		delete(w.running, d.Batch.Number)
	case InstanceRetired:
		for _, b := range w.running {
			if _, known := w.granted[d.Instance]; known && b.Instance == d.Instance {
				t.Fatalf("instance %v retired while batch %d runs", d.Instance, b.ID.Number)
			}
		}
		delete(w.granted, d.Instance)
		delete(w.credits, d.Instance)
	}
}

// tookItsShare: what the pool's bounds end belongs to a model that has, with
// it, at least its equal share of them.
func (w *world) tookItsShare(t *rapid.T, it *Item) {
	had, models := w.waiting[it.Model], len(w.configs)
	if had.requests+1 < poolLimits.MaxRequests/models && had.bytes+it.Bytes < poolLimits.MaxBytes/int64(models) {
		t.Fatalf("request %d had no room though its model had only %+v", it.Work.Request.Number, had)
	}
}

func (w *world) ended(t *rapid.T, it *Item) {
	n := it.Work.Request.Number
	if w.open[n] != it {
		t.Fatalf("request %d ended twice", n)
	}
	delete(w.open, n)
}

func (w *world) dispatched(t *rapid.T, b *Batch) {
	c := w.configs[b.Model]
	if b.Size > maxSize(c) || (c.Batching == nil && len(b.Items) != 1) {
		t.Fatalf("batch %d has size %d in %d items", b.ID.Number, b.Size, len(b.Items))
	}
	if w.granted[b.Instance] != b.Model {
		t.Fatalf("batch %d of %v went to instance %v", b.ID.Number, b.Model, b.Instance)
	}
	if w.credits[b.Instance] <= w.pipelined[b.Instance] {
		w.wasPipelined(t, b)
	}
	if w.credits[b.Instance]--; w.credits[b.Instance] < 0 {
		t.Fatalf("instance %v got more batches than credits", b.Instance)
	}
	for _, waits := range w.open {
		if waits.model != nil && waits.batch == nil && waits.Model == b.Model && waits.level < b.Items[0].level {
			t.Fatalf("request %d of level %d waits while level %d runs", waits.Work.Request.Number, waits.level, b.Items[0].level)
		}
	}
	width := b.Items[0].Request.Inputs[0].Shape[1]
	for i, it := range b.Items {
		switch n := it.Work.Request.Number; {
		case it.Deadline != 0 && it.Deadline <= w.now:
			t.Fatalf("request %d ran after its deadline", n)
		case it.behindAt == 0 && !w.requeued[n] && n <= w.newest[place{b.Model, it.level}]:
			t.Fatalf("request %d overtook request %d of its level", w.newest[place{b.Model, it.level}], n)
		case c.Batching != nil && it.Request.Inputs[0].Shape[1] != width:
			t.Fatalf("batch %d mixes shapes", b.ID.Number)
		case b.Requests[i] != it.Request || b.Enqueued[i] != it.Enqueued:
			t.Fatalf("batch %d does not name its items", b.ID.Number)
		}
		if it.behindAt == 0 && !w.requeued[it.Work.Request.Number] {
			w.newest[place{b.Model, it.level}] = it.Work.Request.Number
		}
	}
	w.running[b.ID.Number] = b
}

// wasPipelined checks that a pipelined batch is one for which waiting would not have
// changed anything but the time.
func (w *world) wasPipelined(t *rapid.T, b *Batch) {
	for id, of := range w.granted {
		if in := w.core.instances[id]; of == b.Model && in != nil && !in.retiring && w.credits[id] > w.pipelined[id] {
			t.Fatalf("batch %d was pipelined to %v while %v is free", b.ID.Number, b.Instance, id)
		}
	}
	in := w.core.instances[b.Instance]
	switch {
	case in.retiring:
		t.Fatalf("batch %d was pipelined to %v, which retires", b.ID.Number, in.id)
	case b.takes == 0 || b.takes > brief:
		t.Fatalf("batch %d, which takes %v, was pipelined", b.ID.Number, b.takes)
	}
	end := in.busyUntil
	for _, later := range w.core.batches {
		if later.instance == in && later.ID.Number > b.ID.Number {
			end = end.Add(-later.takes)
		}
	}
	for _, it := range b.Items {
		if it.level > 0 || it.timeout != 0 || it.behindAt != 0 {
			t.Fatalf("request %d was pipelined, and could have been overtaken or given up", it.Work.Request.Number)
		}
		if !it.doneBy(end) {
			t.Fatalf("request %d was pipelined, and would not be done in time", it.Work.Request.Number)
		}
	}
	if p, is := in.model.batcher.(*dynamic); is && b.Size < p.preferred[len(p.preferred)-1] && !w.follows(b) {
		t.Fatalf("batch %d was pipelined of size %d, and others could have joined", b.ID.Number, b.Size)
	}
}

// follows reports whether a request waited when the batch was formed that is
// not in it: one that could not join it, or not without passing a preferred size.
func (w *world) follows(b *Batch) bool {
	for _, it := range w.open {
		if it.model != nil && it.Model == b.Model && (it.batch == nil || it.batch.ID.Number > b.ID.Number) {
			return true
		}
	}
	return false
}

// balance holds the books: every request has ended or is known to the core.
func (w *world) balance(t *rapid.T) {
	if n := w.core.InFlight(); n != len(w.open) {
		t.Fatalf("%d in flight, %d open", n, len(w.open))
	}
	w.core.check()
}

// drain has instances for everything, and completes what runs until nothing is
// left.
func (w *world) drain(t *rapid.T) {
	for _, name := range []string{"a", "b"} {
		ref := infer.ModelRef{Name: name, Version: 1, Generation: 1}
		w.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: w.configs[ref]}})
		w.offer(t, 1, ref, 1, 1)
	}
	for _, id := range slices.Sorted(maps.Keys(w.core.workers)) {
		w.report(t, id, 0)
	}
	w.now = w.now.Add(time.Second)
	w.step(t, &Event{Kind: Tick})
	for len(w.running) > 0 {
		w.completeBatch(t, slices.Min(slices.Collect(maps.Keys(w.running))))
	}
	w.balance(t)
	if len(w.open) != 0 {
		t.Fatalf("%d requests are still open", len(w.open))
	}
}
