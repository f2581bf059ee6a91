package core

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// TestTakeovers has schedulers die, step down and follow each other at any moment,
// workers come, go, lose their streams and instances, and give back batches, a model
// that is unloaded, and a gateway that cancels requests, lets deadlines pass and
// submits again what has no answer. No request runs twice, none is said to have
// run that has not, in the end each has its answer, and every instance has its
// credits back.
func TestTakeovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(t)
		t.Repeat(map[string]func(*rapid.T){
			"submit":    p.submit,
			"cancel":    p.cancel,
			"deliver":   p.deliver,
			"complete":  p.complete,
			"spare":     p.spareOne,
			"break":     p.breakStream,
			"cut":       p.disconnect,
			"connect":   p.connect,
			"stand":     p.standStill,
			"die":       p.die,
			"open":      p.openOne,
			"retire":    p.retire,
			"lose":      p.loseLane,
			"unload":    p.unload,
			"load":      p.load,
			"kill":      p.kill,
			"step down": p.stepDown,
			"lead":      p.lead,
			"reconnect": p.reconnect,
			"wait":      p.wait,
			"":          p.check,
		})
		p.finish(t)
	})
}

func (p *pool) submit(t *rapid.T) {
	p.last++
	p.asked[p.last] = &asked{}
	if d := rapid.SampledFrom([]time.Duration{0, 0, time.Second, 7 * time.Second}).Draw(t, "deadline"); d > 0 {
		p.asked[p.last].deadline = p.now.Add(d)
	}
	p.send(p.last)
}

// cancel has the client of a request go.
func (p *pool) cancel(t *rapid.T) {
	number := rapid.Uint64Range(1, p.last+1).Draw(t, "request")
	if r := p.asked[number]; r != nil && !r.answered {
		r.answered = true
		p.step(&Event{Kind: Cancel, Unit: infer.Unit{Request: infer.RequestID{Origin: 1, Number: number}}})
	}
}

func (p *pool) draw(t *rapid.T) *poolWorker {
	return p.workers[rapid.SampledFrom(slices.Sorted(maps.Keys(p.workers))).Draw(t, "worker")]
}

func (p *pool) deliver(t *rapid.T) { p.arrive(p.draw(t)) }

func (p *pool) complete(t *rapid.T) {
	w := p.draw(t)
	running := slices.DeleteFunc(slices.Clone(w.open), func(o *infer.Batch) bool { return !w.runs[o] })
	if len(running) > 0 {
		p.end(w, running[rapid.IntRange(0, len(running)-1).Draw(t, "order")])
	}
}

// spareOne has a worker answer a request whose inputs do not come. The rest of
// its batch is run, or given back.
func (p *pool) spareOne(t *rapid.T) {
	w := p.draw(t)
	if len(w.inbox) == 0 || len(w.inbox[0].Requests) < 2 {
		return
	}
	p.spare(w, w.inbox[0], rapid.IntRange(0, len(w.inbox[0].Requests)-1).Draw(t, "request"))
}

// breakStream ends a worker's stream. The scheduler goes on to give it batches.
func (p *pool) breakStream(t *rapid.T) {
	if w := p.draw(t); w.connected && !w.broken {
		p.sever(w)
	}
}

func (p *pool) disconnect(t *rapid.T) { p.cut(p.draw(t)) }

func (p *pool) connect(t *rapid.T) { p.meet(p.draw(t)) }

// standStill has a worker go on after a pause: what it has not begun it gives
// back, some of it on the stream from before, and connects anew.
func (p *pool) standStill(t *rapid.T) {
	w := p.draw(t)
	for _, o := range slices.Concat(w.inbox, w.open) {
		if w.runs[o] {
			continue
		}
		present := slices.Contains(w.sent, o) // else the next hello says it
		w.forget(o)
		if present && rapid.Bool().Draw(t, "said") {
			p.giveBack(o, errs.PeerUnreachable)
		} else if present {
			w.sent = append(w.sent, o) // the scheduler hears of it with the end of the stream
		}
	}
	p.cut(w)
}

// die ends a worker with all that runs there; another one comes.
func (p *pool) die(t *rapid.T) {
	w := p.draw(t)
	p.cut(w)
	delete(p.workers, w.id)
	p.step(&Event{Kind: WorkerLost, Instance: infer.InstanceID{Worker: w.id}})
	p.join()
}

func (p *pool) openOne(t *rapid.T) {
	if w := p.draw(t); len(w.lanes) < 3 {
		p.openLane(w, rapid.IntRange(1, 2).Draw(t, "credits"))
	}
}

// retire has a worker close an instance: when the scheduler says that nothing
// comes any more, or at once where there is none.
func (p *pool) retire(t *rapid.T) {
	w := p.draw(t)
	if len(w.lanes) == 0 {
		return
	}
	slot := rapid.SampledFrom(slices.Sorted(maps.Keys(w.lanes))).Draw(t, "slot")
	if !w.connected || w.broken {
		delete(w.lanes, slot)
		return
	}
	w.lanes[slot].retiring = true
	p.step(&Event{Kind: Retire, Instance: infer.InstanceID{Worker: w.id, Slot: slot}})
}

// loseLane has a worker close an instance without waiting. It refuses what comes
// for it: without that the scheduler would not know.
func (p *pool) loseLane(t *rapid.T) {
	if w := p.draw(t); len(w.inbox) > 0 {
		delete(w.lanes, w.inbox[0].Instance.Slot)
		p.arrive(w)
	}
}

func (p *pool) unload(*rapid.T) {
	p.unloaded = true
	p.step(&Event{Kind: Remove, Model: &Model{Ref: poolModel}})
}

func (p *pool) load(*rapid.T) {
	p.unloaded = false
	p.configure()
}

// kill ends the scheduler.
func (p *pool) kill(*rapid.T) {
	p.core = nil
	for _, w := range p.workers {
		p.sever(w)
		w.connected, w.broken, w.heard, w.sent = false, false, false, nil
	}
}

// resign ends it in good order.
func (p *pool) stepDown(t *rapid.T) {
	p.step(&Event{Kind: StepDown})
	p.kill(t)
}

// lead has the next scheduler take the pool.
func (p *pool) lead(*rapid.T) {
	if p.core != nil {
		return
	}
	p.epoch++
	p.core = New(Config{})
	p.configure()
	p.measured()
	history := Inherit(p.stored, p.epoch)
	p.stored = &history
	p.step(&Event{Kind: BecomeLeader, Epoch: p.epoch, History: history, Until: p.now.Add(5 * time.Second)})
	p.again()
}

// reconnect ends the gateway's stream, and begins the next.
func (p *pool) reconnect(*rapid.T) {
	p.step(&Event{Kind: GatewayDisconnected, Origin: 1})
	p.again()
}

func (p *pool) wait(t *rapid.T) {
	p.now = p.now.Add(time.Duration(rapid.Int64Range(1, 3000).Draw(t, "ms")) * time.Millisecond)
	p.expire()
	p.step(&Event{Kind: Tick})
}

func (p *pool) check(t *rapid.T) {
	for number, r := range p.asked {
		if r.runs > 1 && !p.repeats {
			t.Fatalf("request %d ran %d times", number, r.runs)
		}
	}
	if p.core != nil {
		p.core.check()
	}
}

// finish lets everything arrive and end.
func (p *pool) finish(t *rapid.T) {
	p.lead(t)
	p.load(t)
	for _, w := range p.sorted() {
		if w.broken {
			p.cut(w)
		}
		p.meet(w)
		if len(w.lanes) == 0 {
			p.openLane(w, 1)
		}
	}
	p.now = p.now.Add(6 * time.Second) // by when all have reported or count as lost
	p.expire()
	p.step(&Event{Kind: Tick})
	for busy := true; busy; {
		busy = false
		for _, w := range p.sorted() {
			for p.arrive(w) {
				busy = true
			}
			for len(w.open) > 0 {
				p.end(w, w.open[0])
				busy = true
			}
		}
	}
	p.check(t)
	for number, r := range p.asked {
		if !r.answered {
			t.Fatalf("request %d has no answer after %d attempts and %d runs", number, r.attempt, r.runs)
		}
	}
	if n := p.core.InFlight(); n != 0 {
		t.Fatalf("%d items are left", n)
	}
	p.credited()
}
