package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// TestScripts runs the scripts in testdata/scripts: a command for each event, then
// the exact actions. Rewrite them with -args -rewrite, and commit only lines
// that you can explain.
//
//	limits [requests=N] [bytes=N]
//	model NAME [idempotent] [gen=N] [max=ROWS] [delay=D] [preferred=(N,N)] [queue=N] [timeout=D] [override] [behind] [variable] [ragged]
//	      [optional] [levels=N] [default=N] [top=N] [nobatch]
//	      behind: what times out goes behind; top: bound of the queue of priority level 1; optional: has an input y
//	remove NAME [gen=N]
//	grant WORKER/SLOT NAME [gen=N] [credits=N] [ahead=N] [device=KIND:N]  (ahead: how many of the credits are)
//	retire WORKER/SLOT
//	detach WORKER
//	submit ID MODEL [attempt=N] [from=EPOCH] [gen=N] [rows=N] [deadline=D] [timeout=D] [priority=N] [width=N] [y] [bytes=N]
//	cancel ID
//	complete ORDER [epoch=N] [credits=N] [took=D]
//	standby          (first: the core does not lead from the start on)
//	lead EPOCH [hear=(WORKER,…)] [by=D]
//	resign
//	attach WORKER [begun=(ID,…)] [runs=(ORDER,EPOCH,SLOT,ID,…)]
//	part WORKER [orders=(ORDER,…)] [until=D]
//	refuse ORDER [gone] [unreachable] [answered=(ID,…)]  (gone: the worker has no such instance; unreachable: it will attach anew)
//	left
//	wait D           (in virtual time, stopping for each wake-up on the way)
//	counts
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, s.run)
	})
}

// script drives a core in virtual time, which starts at one second.
type script struct {
	core  *Core
	now   mono.Time
	begun bool
}

const scriptStart = mono.Time(time.Second)

func newScript() *script { return &script{core: New(Limits{}), now: scriptStart} }

// begin has a script lead from its start on, unless it says when.
func (s *script) begin(d *datadriven.TestData) {
	if s.begun {
		return
	}
	s.begun = true
	if d.Cmd != "standby" {
		s.step(&Event{Kind: Lead})
	}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t: t, d: d}
	s.begin(d)
	switch d.Cmd {
	case "standby":
		return ""
	case "limits":
		s.core.limits = Limits{Requests: a.number("requests", 0), Bytes: int64(a.number("bytes", 0))}
		return ""
	case "wait":
		return s.wait(a.duration(d.CmdArgs[0].Key))
	case "counts":
		return fmt.Sprintf("%+v in flight %d\n", s.core.Counts(), s.core.InFlight())
	}
	return s.step(a.event(s))
}

func (s *script) step(e *Event) string { return describe(s.core.Step(s.now, e)) }

// wait lets time pass, with a tick whenever the core wants one.
func (s *script) wait(d time.Duration) string {
	var out strings.Builder
	end := s.now.Add(d)
	for wake := s.core.NextWake(); wake != 0 && wake <= end; wake = s.core.NextWake() {
		s.now = max(s.now, wake)
		fmt.Fprintf(&out, "at %v:\n%s", s.now.Sub(scriptStart), s.step(&Event{Kind: Tick}))
	}
	s.now = end
	return out.String()
}

func describe(actions []Action) string {
	var out strings.Builder
	for i := range actions {
		out.WriteString(sentence(&actions[i]) + "\n")
	}
	return out.String()
}

func sentence(a *Action) string {
	switch a.Kind {
	case Dispatch:
		o := &a.Batch.Order
		text := fmt.Sprintf("dispatch order %s to %s: %s, %d rows", order(a.Batch), slot(o.Instance), numbers(a.Batch.Items), a.Batch.Rows)
		if o.LatestStart != 0 {
			text += fmt.Sprintf(", start by %v", o.LatestStart.Sub(scriptStart))
		}
		return text
	case Disowned:
		return fmt.Sprintf("disowned order %d", a.Order.ID)
	case Requeued:
		return fmt.Sprintf("requeued order %s: %s", order(a.Batch), numbers(a.Batch.Items))
	case Passed:
		return fmt.Sprintf("passed order %s: %s", order(a.Batch), numbers(a.Batch.Items))
	case Finish:
		text := fmt.Sprintf("finish %d: %s", a.Item.Work.Request.Number, a.Reason)
		if a.Retry != 0 {
			text += fmt.Sprintf(", retry after %v", a.Retry)
		}
		return text
	case Lost:
		return fmt.Sprintf("lost %d: %s", a.Item.Work.Request.Number, a.Reason)
	case Abort:
		return fmt.Sprintf("abort %d in order %s: %s", a.Item.Work.Request.Number, order(a.Batch), a.Reason)
	case Finished:
		return fmt.Sprintf("finished order %s: %s", order(a.Batch), numbers(a.Batch.Items))
	case Retired:
		return "retired " + slot(a.Instance)
	}
	return "unknown action"
}

// order names an order by its number, and by the epoch of an earlier scheduler.
func order(b *Batch) string {
	if b.Order.Epoch == 0 {
		return fmt.Sprint(b.Order.ID)
	}
	return fmt.Sprintf("%d of epoch %d", b.Order.ID, b.Order.Epoch)
}

func slot(id infer.InstanceID) string { return fmt.Sprintf("%d/%d", id.Worker, id.Slot) }

func numbers(items []*Item) string {
	var list []string
	for _, it := range items {
		list = append(list, fmt.Sprint(it.Work.Request.Number))
	}
	return "[" + strings.Join(list, " ") + "]"
}
