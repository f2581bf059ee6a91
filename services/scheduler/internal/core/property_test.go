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

// TestHistories feeds random histories to a core and holds every action
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
			"detach":   w.detach,
			"refuse":   w.refuse,
			"remove":   w.remove,
			"return":   w.configure,
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
	lastSlot    uint32
	open        map[uint64]*Item                    // not ended, by request number
	running     map[uint64]*Batch                   // by order
	granted     map[infer.InstanceID]infer.ModelRef // not retired or lost
	credits     map[infer.InstanceID]int
	ahead       map[infer.InstanceID]int
	newest      map[place]uint64        // latest number dispatched, for order
	requeued    map[uint64]bool         // by request number: they lose their place
	waiting     map[infer.ModelRef]load // before the present step
}

// place is where a request waits: what is there goes in order of arrival.
type place struct {
	model infer.ModelRef
	level int
}

var poolLimits = Limits{Requests: 6, Bytes: 30}

func newWorld(t *rapid.T) *world {
	w := &world{
		core: New(poolLimits), now: scriptStart,
		configs: map[infer.ModelRef]*modelconfig.Config{},
		open:    map[uint64]*Item{}, running: map[uint64]*Batch{},
		granted: map[infer.InstanceID]infer.ModelRef{}, credits: map[infer.InstanceID]int{}, ahead: map[infer.InstanceID]int{},
		newest: map[place]uint64{}, requeued: map[uint64]bool{},
	}
	w.step(t, &Event{Kind: Lead})
	for _, name := range []string{"a", "b"} {
		ref := infer.ModelRef{Name: name, Version: 1, Generation: 1}
		w.configs[ref] = drawConfig(t)
		w.step(t, &Event{Kind: Configure, Model: &Model{Ref: ref, Config: w.configs[ref]}})
		w.measured(t, ref)
		w.offer(t, 1, ref, 1, rapid.IntRange(0, 2).Draw(t, "ahead"))
	}
	return w
}

// measured may have what a model takes known from the start.
func (w *world) measured(t *rapid.T, ref infer.ModelRef) {
	each := rapid.SampledFrom([]time.Duration{0, 20 * time.Microsecond, 20 * time.Microsecond, 400 * time.Microsecond}).Draw(t, "takes")
	for rows := range maxRows(w.configs[ref]) {
		w.core.models[ref].costsOn("").learn(rows+1, time.Duration(rows+1)*each)
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
	rows := rapid.Int64Range(1, maxRows(w.configs[ref])).Draw(t, "rows")
	it := &Item{
		Request: &infer.Request{
			Priority: rapid.Uint64Range(0, 4).Draw(t, "priority"),
			Timeout:  rapid.SampledFrom([]time.Duration{0, 50 * time.Microsecond}).Draw(t, "own timeout"),
			Inputs:   []infer.Tensor{{Name: "x", Shape: tensor.Shape{rows, rapid.Int64Range(1, 2).Draw(t, "width")}}},
		},
		Work:  infer.Work{Request: infer.RequestID{Number: w.lastRequest}},
		Model: ref, Rows: rows, Bytes: 8 * rows, Enqueued: w.now,
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
	w.step(t, &Event{Kind: Cancel, Request: infer.RequestID{Number: n}})
	if it := w.open[n]; it != nil && it.batch == nil {
		t.Fatalf("request %d waits on after its cancellation", n)
	}
}

func (w *world) complete(t *rapid.T) {
	order := rapid.Uint64Range(1, w.core.lastOrder+1).Draw(t, "order")
	w.completeOrder(t, order)
	if w.running[order] != nil {
		t.Fatalf("order %d has not finished with its completion", order)
	}
}

// completeOrder completes an order that may not run, or not any more.
func (w *world) completeOrder(t *rapid.T, order uint64) {
	done := &infer.Completion{Order: order}
	if b := w.running[order]; b != nil {
		done.Instance, done.Credits, done.Executions = b.Order.Instance, 1, 1
		done.Timing = infer.Timing{Start: w.now.Add(-time.Duration(b.Rows) * 20 * time.Microsecond), Done: w.now}
		w.credits[done.Instance]++
	}
	w.step(t, &Event{Kind: Completed, Completion: done})
}

func (w *world) grant(t *rapid.T) {
	w.offer(t, rapid.Uint64Range(1, 2).Draw(t, "worker"), w.drawModel(t), rapid.IntRange(1, 2).Draw(t, "credits"), rapid.IntRange(0, 2).Draw(t, "ahead"))
}

// offer grants the credits of a new instance, for orders that run and for those
// ahead.
func (w *world) offer(t *rapid.T, worker uint64, of infer.ModelRef, atOnce, ahead int) {
	w.lastSlot++
	id := infer.InstanceID{Worker: worker, Slot: w.lastSlot}
	w.granted[id], w.credits[id], w.ahead[id] = of, atOnce+ahead, ahead
	w.step(t, &Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: of, Credits: w.credits[id], Ahead: ahead}})
}

func (w *world) retire(t *rapid.T) {
	id := infer.InstanceID{Worker: rapid.Uint64Range(1, 2).Draw(t, "worker"), Slot: rapid.Uint32Range(1, w.lastSlot+1).Draw(t, "slot")}
	w.step(t, &Event{Kind: Retire, Instance: id})
}

func (w *world) detach(t *rapid.T) {
	worker := rapid.Uint64Range(1, 2).Draw(t, "worker")
	for id := range w.granted {
		if id.Worker == worker {
			delete(w.granted, id)
			delete(w.credits, id)
		}
	}
	w.step(t, &Event{Kind: Detached, Instance: infer.InstanceID{Worker: worker}})
}

// refuse has a worker give back an order that runs, whose instance is gone or
// has, as it says, more orders than it may have: then the credit was its own
// mistake, and there is one less. One out of reach takes no orders before it
// offers new instances.
func (w *world) refuse(t *rapid.T) {
	b := w.running[rapid.Uint64Range(1, w.core.lastOrder+1).Draw(t, "order")]
	if b == nil {
		return
	}
	reason, id := rapid.SampledFrom([]errs.Reason{errs.NoWorker, errs.PeerUnreachable, errs.Bug}).Draw(t, "reason"), b.Order.Instance
	switch reason {
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
		w.ahead[id] = max(w.ahead[id]-1, 0)
	}
	w.step(t, &Event{Kind: Refused, Orders: []*infer.Order{&b.Order}, Reason: reason})
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

// follow ticks when the core asks for it and at no other time, as the driver
// does, until it asks no more. Then nothing waits beside an instance that could
// take it, whatever the policy.
func (w *world) follow(t *rapid.T) {
	for wake := w.core.NextWake(); wake != 0; wake = w.core.NextWake() {
		w.now = max(w.now, wake)
		w.step(t, &Event{Kind: Tick})
	}
	for n, it := range w.open {
		if it.batch == nil && !it.model.unconfigured() && it.model.idle() != nil {
			t.Fatalf("request %d of model %v waits for ever beside a free instance", n, it.Model)
		}
	}
}

func (w *world) step(t *rapid.T, e *Event) {
	w.waiting = map[infer.ModelRef]load{}
	for ref, m := range w.core.models {
		w.waiting[ref] = m.waiting
	}
	for _, a := range w.core.Step(w.now, e) {
		w.see(t, a)
	}
}

func (w *world) see(t *rapid.T, a Action) {
	switch a.Kind {
	case Dispatch:
		w.dispatched(t, a.Batch)
	case Finish:
		w.ended(t, a.Item)
		if a.Reason == errs.QueueFull {
			w.tookItsShare(t, a.Item)
		}
	case Lost:
		delete(w.running, a.Batch.Order.ID)
		w.ended(t, a.Item)
	case Requeued:
		delete(w.running, a.Batch.Order.ID)
		for _, it := range a.Batch.Items {
			w.requeued[it.Work.Request.Number] = true
		}
	case Abort:
		if w.running[a.Batch.Order.ID] != a.Batch {
			t.Fatalf("abort in order %d, which does not run", a.Batch.Order.ID)
		}
	case Finished:
		for _, it := range a.Batch.Items {
			w.ended(t, it)
		}
		delete(w.running, a.Completion.Order)
	case Retired:
		for _, b := range w.running {
			if _, known := w.granted[a.Instance]; known && b.Order.Instance == a.Instance {
				t.Fatalf("instance %v retired while order %d runs", a.Instance, b.Order.ID)
			}
		}
		delete(w.granted, a.Instance)
		delete(w.credits, a.Instance)
	}
}

// tookItsShare: what the pool's bounds end belongs to a model that has, with
// it, at least its equal share of them.
func (w *world) tookItsShare(t *rapid.T, it *Item) {
	had, models := w.waiting[it.Model], len(w.configs)
	if had.requests+1 < poolLimits.Requests/models && had.bytes+it.Bytes < poolLimits.Bytes/int64(models) {
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
	if b.Rows > maxRows(c) || (c.Batching == nil && len(b.Items) != 1) {
		t.Fatalf("order %d has %d rows in %d items", b.Order.ID, b.Rows, len(b.Items))
	}
	if w.granted[b.Order.Instance] != b.Model {
		t.Fatalf("order %d of %v went to instance %v", b.Order.ID, b.Model, b.Order.Instance)
	}
	if w.credits[b.Order.Instance] <= w.ahead[b.Order.Instance] {
		w.wentAhead(t, b)
	}
	if w.credits[b.Order.Instance]--; w.credits[b.Order.Instance] < 0 {
		t.Fatalf("instance %v got more orders than credits", b.Order.Instance)
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
		case it.lateAt == 0 && !w.requeued[n] && n <= w.newest[place{b.Model, it.level}]:
			t.Fatalf("request %d overtook request %d of its level", w.newest[place{b.Model, it.level}], n)
		case c.Batching != nil && it.Request.Inputs[0].Shape[1] != width:
			t.Fatalf("order %d mixes shapes", b.Order.ID)
		case b.Order.Requests[i] != it.Request || b.Order.Enqueued[i] != it.Enqueued:
			t.Fatalf("order %d does not name its items", b.Order.ID)
		}
		if it.lateAt == 0 && !w.requeued[it.Work.Request.Number] {
			w.newest[place{b.Model, it.level}] = it.Work.Request.Number
		}
	}
	w.running[b.Order.ID] = b
}

// wentAhead checks that an order ahead is one for which waiting would not have
// changed anything but the time.
func (w *world) wentAhead(t *rapid.T, b *Batch) {
	for id, of := range w.granted {
		if in := w.core.instances[id]; of == b.Model && in != nil && !in.retiring && w.credits[id] > w.ahead[id] {
			t.Fatalf("order %d went ahead to %v while %v is free", b.Order.ID, b.Order.Instance, id)
		}
	}
	in := w.core.instances[b.Order.Instance]
	switch {
	case in.retiring:
		t.Fatalf("order %d went ahead to %v, which retires", b.Order.ID, in.id)
	case b.takes == 0 || b.takes > brief:
		t.Fatalf("order %d, which takes %v, went ahead", b.Order.ID, b.takes)
	}
	end := in.busyUntil
	for _, later := range w.core.orders {
		if later.instance == in && later.Order.ID > b.Order.ID {
			end = end.Add(-later.takes)
		}
	}
	for _, it := range b.Items {
		if it.level > 0 || it.timeout != 0 || it.lateAt != 0 {
			t.Fatalf("request %d went ahead, and could have been overtaken or given up", it.Work.Request.Number)
		}
		if !it.doneBy(end) {
			t.Fatalf("request %d went ahead, and would not be done in time", it.Work.Request.Number)
		}
	}
	if p, is := in.model.policy.(*batcher); is && b.Rows < p.preferred[len(p.preferred)-1] && !w.follows(b) {
		t.Fatalf("order %d went ahead with %d rows, and others could have joined", b.Order.ID, b.Rows)
	}
}

// follows reports whether a request waited when the batch was formed that is
// not in it: one that could not join it, or not without passing a preferred size.
func (w *world) follows(b *Batch) bool {
	for _, it := range w.open {
		if it.model != nil && it.Model == b.Model && (it.batch == nil || it.batch.Order.ID > b.Order.ID) {
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
	w.now = w.now.Add(time.Second)
	w.step(t, &Event{Kind: Tick})
	for len(w.running) > 0 {
		w.completeOrder(t, slices.Min(slices.Collect(maps.Keys(w.running))))
	}
	w.balance(t)
	if len(w.open) != 0 {
		t.Fatalf("%d requests are still open", len(w.open))
	}
}
