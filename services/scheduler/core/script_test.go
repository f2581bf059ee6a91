package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// TestScripts runs the scripts in testdata/scripts: a command for each event, then
// the exact decisions. Rewrite them with -args -rewrite, and commit only lines
// that you can explain. Each script runs again with wake-ups that come late by a
// drawn jitter: no decision may depend on an exact one.
//
//	limits [requests=N] [bytes=N]
//	ratelimit [counts=(NAME:COUNT[:DEVICE],…)]
//	show [waits] [records] [gone]   (decisions that are not shown otherwise)
//	store away|once|back            (away: it does not hold what it is asked to; once: it holds what it has been asked to last)
//	model NAME [idempotent] [gen=N] [max=SIZE] [delay=D] [preferred=(N,N)] [queue=N] [timeout=D] [override] [behind] [variable] [ragged] [decoupled]
//	      [optional] [levels=N] [default=N] [top=N] [nobatch]
//	      [needs=(NAME:COUNT[:global],…)] [turns=N]  (under the rate limiter; turns: the priority)
//	      behind: what times out goes behind; top: bound of the queue of priority level 1; optional: has an input y
//	model NAME direct|oldest [max=SIZE] [slots=N] [idle=D] [delay=D] [utilization=SHARE] [preferred=(N,N)] [iterative] […]  (batches sequences)
//	remove NAME [gen=N]
//	grant WORKER/SLOT NAME [gen=N] [credits=N] [pipelined=N] [device=KIND:N]  (connects a worker that is not; pipelined: how many of the credits are)
//	retire WORKER/SLOT
//	memory WORKER [bytes=BYTES]
//	submit ID MODEL [origin=N] [attempt=N] [from=EPOCH] [gen=N] [size=N] [deadline=D] [timeout=D] [priority=N] [width=N] [y] [bytes=N]
//	      [seq=ID] [start] [end] [by=BATCH [of=ID]]  (by: the batch whose model calls; of: for that request alone)
//	cancel ID
//	complete BATCH [epoch=N] [credits=N] [took=D] [ends=(done|more|again,…)]
//	done ID [iteration=N]
//	standby          (first: the core does not lead from the start on)
//	lead EPOCH [recorded=(WORKER,…)] [before=EPOCH] [unknown] [by=D]  (before: the history is complete since then; unknown: there is none)
//	stepdown
//	lease KEY WORKER
//	unlease KEY [released]
//	connect WORKER [started=(ID,…)] [runs=(BATCH,EPOCH,SLOT,ID,…)] [free] [sequences=(SLOT/INDEX/ID,…)] [of=NAME]
//	disconnect WORKER [batches=(BATCH,…)] [by=D]
//	lose WORKER
//	return BATCH [gone] [unreachable] [answered=(ID,…)]  (gone: the worker has no such instance; unreachable: it will connect anew)
//	gatewaylost [origin=N]
//	wait D [late=D]  (in virtual time, stopping for each wake-up on the way, or so late)
//	counts
func TestScripts(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("jitter", seed), func(t *testing.T) {
			datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
				s := newScript()
				if seed > 0 {
					s.jitter = rand.New(rand.NewPCG(seed, 0))
				}
				datadriven.RunTest(t, path, s.run)
			})
		})
	}
}

// script drives a core in virtual time, which starts at one second.
type script struct {
	core     *Core
	now      mono.Time
	jitter   *rand.Rand // how late wake-ups are; nil: not at all
	begun    bool
	away     bool // the store is
	shown    []string
	revision uint64
}

const scriptStart = mono.Time(time.Second)

func newScript() *script { return &script{core: New(Config{}), now: scriptStart} }

// begin has a script lead from its start on, unless it says when.
func (s *script) begin(d *datadriven.TestData) {
	if s.begun {
		return
	}
	s.begun = true
	if d.Cmd != "standby" {
		s.step(&Event{Kind: BecomeLeader})
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t: t, d: d}
	s.begin(d)
	switch d.Cmd {
	case "standby":
		return ""
	case "limits":
		s.core.config = Config{MaxRequests: a.number("requests", 0), MaxBytes: int64(a.number("bytes", 0))}
		return ""
	case "ratelimit":
		s.core.config.RateLimit = a.rateLimit()
		s.core.limiter = newLimiter(s.core.config.RateLimit, 0)
		return ""
	case "show":
		for _, arg := range d.CmdArgs {
			s.shown = append(s.shown, arg.Key)
		}
		return ""
	case "store":
		return s.store(d.CmdArgs[0].Key)
	case "wait":
		return s.wait(a.duration(d.CmdArgs[0].Key), a.duration(a.text("late", "0s")))
	case "counts":
		return fmt.Sprintf("%+v in flight %d\n", s.core.Counts(), s.core.InFlight())
	case "grant":
		return s.connected(a.instance().Worker) + s.step(a.event(s))
	}
	return s.step(a.event(s))
}

// store has the store go, or come back and hold what it was asked to.
func (s *script) store(how string) string {
	s.away = how != "back"
	if how == "away" || s.core.asked == s.core.stored {
		return ""
	}
	return s.step(&Event{Kind: Recorded, Version: s.core.asked})
}

// connected connects a worker that is not.
func (s *script) connected(worker uint64) string {
	if w := s.core.workers[worker]; w != nil && w.connected {
		return ""
	}
	return s.step(&Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: worker}, Held: &infer.Held{}})
}

// step takes a step, and the next one when the store holds what that asked for.
func (s *script) step(e *Event) string {
	decisions := s.core.Step(s.now, e)
	text, stored := s.describe(decisions), uint64(0)
	for i := range decisions {
		if d := &decisions[i]; d.Kind == Record && !s.away {
			stored = uint64(d.A)
		}
	}
	if stored != 0 {
		text += s.step(&Event{Kind: Recorded, Version: stored})
	}
	return text
}

// wait lets time pass, with a tick whenever the core wants one.
func (s *script) wait(d, late time.Duration) string {
	var out strings.Builder
	end := s.now.Add(d)
	for wake := s.core.NextWake(); wake != 0 && wake <= end; wake = s.core.NextWake() {
		s.now = max(s.now, wake)
		at := s.now.Sub(scriptStart)
		s.now = s.now.Add(late)
		if s.jitter != nil {
			s.now = s.now.Add(time.Duration(s.jitter.Int64N(int64(500 * time.Microsecond))))
		}
		s.now = min(s.now, end)
		if text := s.step(&Event{Kind: Tick}); text != "" {
			fmt.Fprintf(&out, "at %v:\n%s", at, text)
		}
	}
	s.now = end
	return out.String()
}

func (s *script) describe(decisions []Decision) string {
	var out strings.Builder
	for i := range decisions {
		d := &decisions[i]
		hidden := map[DecisionKind]string{Wait: "waits", Record: "records", WorkerGone: "gone"}[d.Kind]
		if hidden == "" || slices.Contains(s.shown, hidden) {
			out.WriteString(s.sentence(d) + "\n")
		}
	}
	return out.String()
}

func (s *script) sentence(d *Decision) string {
	number := d.Unit.Request.Number
	switch d.Kind {
	case Dispatch:
		text := fmt.Sprintf("dispatch batch %s to %s: %s, size %d", named(d.Batch), slot(d.Instance), numbers(d.Members().Items), d.A)
		if d.B != 0 {
			text += fmt.Sprintf(", start by %v", mono.Time(d.B).Sub(scriptStart))
		}
		for _, s := range d.Members().Slots {
			text += fmt.Sprintf("; slot %d: %s", s.Index, controls(s.Sequence))
		}
		return text
	case UnknownBatch:
		return "unknown batch " + named(d.Batch)
	case Requeue:
		return fmt.Sprintf("requeue batch %s: %s", named(d.Batch), numbers(d.Members().Items))
	case HandOff:
		if d.Reason == "" {
			return fmt.Sprintf("hand off %d of batch %s", number, named(d.Batch))
		}
		return fmt.Sprintf("hand off %d: %s", number, d.Reason)
	case Refuse:
		text := fmt.Sprintf("refuse %d: %s", number, d.Reason)
		if d.A != 0 {
			text += fmt.Sprintf(", retry after %v", time.Duration(d.A))
		}
		return text
	case Fail:
		return fmt.Sprintf("fail %d: %s", number, d.Reason)
	case Abort:
		return fmt.Sprintf("abort %d in batch %s: %s", number, named(d.Batch), d.Reason)
	case Complete:
		if number != 0 {
			return fmt.Sprintf("complete %d of batch %s", number, named(d.Batch))
		}
		return fmt.Sprintf("complete batch %s: %s", named(d.Batch), numbers(d.Members().Items))
	case Again:
		return fmt.Sprintf("iteration %d of %d has run in batch %s", d.Unit.Iteration, number, named(d.Batch))
	case Free:
		return fmt.Sprintf("free of batch %s", named(d.Batch))
	case InstanceRetired:
		return "retired " + slot(d.Instance)
	case Record:
		h := s.core.History()
		return fmt.Sprintf("record %v, complete since epoch %d", h.Workers, h.IncompleteBefore)
	case WorkerGone:
		return fmt.Sprintf("worker %d is gone: %s", d.Instance.Worker, map[int64]string{0: "it has stopped", 1: "it has died"}[d.A])
	case Wait:
		text := fmt.Sprintf("wait with %d, size %d", number, d.B)
		if d.A != 0 {
			text += fmt.Sprintf(" until %v", mono.Time(d.A).Sub(scriptStart))
		}
		if d.Reason != "" {
			text += fmt.Sprintf(": %s", d.Reason)
		}
		return text
	}
	return "unknown decision"
}

// named names a batch by its number, and by the epoch of its scheduler.
func named(id infer.BatchID) string {
	if id.Epoch == 0 {
		return fmt.Sprint(id.Number)
	}
	return fmt.Sprintf("%d of epoch %d", id.Number, id.Epoch)
}

// controls is what the control inputs say of a request.
func controls(s infer.Sequence) string {
	text := s.Key
	if text == "" {
		text = fmt.Sprint(s.ID)
	}
	if s.Start {
		text += " start"
	}
	if s.End {
		text += " end"
	}
	return text
}

func slot(id infer.InstanceID) string { return fmt.Sprintf("%d/%d", id.Worker, id.Slot) }

func numbers(items []*Item) string {
	var list []string
	for _, it := range items {
		if it != nil {
			list = append(list, fmt.Sprint(it.Work.Request.Number))
		}
	}
	return "[" + strings.Join(list, " ") + "]"
}
