package core

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// arguments reads a command of a script.
type arguments struct {
	t *testing.T
	d *datadriven.TestData
}

func (a arguments) event(s *script) *Event {
	switch a.d.Cmd {
	case "model":
		return &Event{Kind: Configure, Model: &Model{Ref: a.ref(0), Config: a.config()}}
	case "remove":
		return &Event{Kind: Remove, Model: &Model{Ref: a.ref(0)}}
	case "grant":
		return &Event{Kind: Granted, Grant: &infer.Grant{
			Instance: a.instance(), Model: a.ref(1), Credits: a.number("credits", 1), Ahead: a.number("ahead", 0), Device: a.text("device", "cpu"),
		}}
	case "retire":
		return &Event{Kind: Retire, Instance: a.instance()}
	case "detach":
		return &Event{Kind: Detached, Instance: infer.InstanceID{Worker: a.id()}}
	case "submit":
		return &Event{Kind: Submit, Item: a.item(s)}
	case "cancel":
		return &Event{Kind: Cancel, Request: infer.RequestID{Number: a.id()}}
	case "complete":
		return a.completion(s)
	}
	return a.termEvent(s)
}

// termEvent reads the commands about terms and workers that come back.
func (a arguments) termEvent(s *script) *Event {
	worker := infer.InstanceID{}
	switch a.d.Cmd {
	case "attach", "part":
		worker.Worker = a.id()
	}
	until := s.now.Add(a.duration(a.text("by", "0s")))
	switch a.d.Cmd {
	case "lead":
		e := &Event{Kind: Lead, Epoch: a.id(), Until: until}
		for _, n := range a.numbers("hear") {
			e.Workers = append(e.Workers, uint64(n))
		}
		return e
	case "resign":
		return &Event{Kind: Resign}
	case "attach":
		return &Event{Kind: Attached, Instance: worker, Held: a.held(worker.Worker)}
	case "part":
		return &Event{Kind: Parted, Instance: worker, Until: until, Orders: a.orders(s)}
	case "refuse":
		e := &Event{Kind: Refused, Orders: []*infer.Order{a.back(s)}, Reason: errs.Bug}
		switch {
		case a.d.HasArg("gone"):
			e.Reason = errs.NoWorker
		case a.d.HasArg("unreachable"):
			e.Reason = errs.PeerUnreachable
		}
		return e
	case "left":
		return &Event{Kind: Left}
	}
	a.t.Fatalf("unknown command %s", a.d.Cmd)
	return nil
}

func (a arguments) completion(s *script) *Event {
	c := &infer.Completion{Order: a.id(), Epoch: uint64(a.number("epoch", int(s.core.epoch))), Credits: a.number("credits", 1), Executions: 1}
	c.Timing = infer.Timing{Start: s.now.Add(-a.duration(a.text("took", "0s"))), Done: s.now}
	if b := s.core.orders[orderKey{c.Epoch, c.Order}]; b != nil {
		c.Instance = b.Order.Instance
	}
	return &Event{Kind: Completed, Completion: c}
}

func (a arguments) item(s *script) *Item {
	width := int64(a.number("width", 4))
	rows := int64(a.number("rows", 1))
	it := &Item{
		Request: &infer.Request{
			Timeout:  a.duration(a.text("timeout", "0s")),
			Priority: uint64(a.number("priority", 0)),
			Inputs:   []infer.Tensor{{Name: "x", Shape: tensor.Shape{rows, width}}},
		},
		Work:     infer.Work{Request: infer.RequestID{Number: a.id()}, Attempt: uint32(a.number("attempt", 1)), Epoch: uint64(a.number("from", 0))},
		Model:    a.ref(1),
		Rows:     rows,
		Bytes:    int64(a.number("bytes", 4)),
		Enqueued: s.now,
	}
	if a.d.HasArg("y") {
		it.Request.Inputs = append(it.Request.Inputs, infer.Tensor{Name: "y", Shape: tensor.Shape{rows, 4}})
	}
	if d := a.duration(a.text("deadline", "0s")); d != 0 {
		it.Deadline = s.now.Add(d)
	}
	return it
}

func (a arguments) config() *modelconfig.Config {
	width := int64(4)
	if a.d.HasArg("variable") {
		width = -1
	}
	c := &modelconfig.Config{
		MaxBatchSize: int64(a.number("max", 4)),
		Inputs:       []modelconfig.IO{{Name: "x", Dims: tensor.Shape{width}, Ragged: a.d.HasArg("ragged")}},
	}
	if a.d.HasArg("idempotent") {
		c.Parameters = map[string]string{Idempotent: "true"}
	}
	if a.d.HasArg("optional") {
		c.Inputs = append(c.Inputs, modelconfig.IO{Name: "y", Dims: tensor.Shape{4}, Optional: true})
	}
	if a.d.HasArg("nobatch") {
		return c
	}
	c.Batching = &modelconfig.DynamicBatching{
		PreferredSizes:      a.numbers("preferred"),
		PriorityLevels:      uint64(a.number("levels", 0)),
		DefaultPriority:     uint64(a.number("default", 0)),
		MaxQueueDelayMicros: uint64(a.duration(a.text("delay", "0s")) / time.Microsecond),
		DefaultPolicy: modelconfig.QueuePolicy{
			MaxQueueSize:         uint32(a.number("queue", 0)),
			DefaultTimeoutMicros: uint64(a.duration(a.text("timeout", "0s")) / time.Microsecond),
			AllowTimeoutOverride: a.d.HasArg("override"),
			Delay:                a.d.HasArg("behind"),
		},
	}
	if a.d.HasArg("top") {
		c.Batching.Policies = map[uint64]modelconfig.QueuePolicy{1: {MaxQueueSize: uint32(a.number("top", 0))}}
	}
	return c
}

func (a arguments) held(worker uint64) *infer.Held {
	var begun infer.Recent
	for _, n := range a.numbers("begun") {
		begun.Add(infer.RequestID{Number: uint64(n)})
	}
	held := &infer.Held{Begun: begun.Begun()}
	if n := a.numbers("runs"); n != nil {
		r := infer.Running{Order: uint64(n[0]), Epoch: uint64(n[1]), Instance: infer.InstanceID{Worker: worker, Slot: uint32(n[2])}}
		for _, id := range n[3:] {
			r.Requests = append(r.Requests, infer.Work{Request: infer.RequestID{Number: uint64(id)}, Attempt: 1})
		}
		held.Running = []infer.Running{r}
	}
	return held
}

func (a arguments) orders(s *script) (list []*infer.Order) {
	for _, id := range a.numbers("orders") {
		list = append(list, &infer.Order{ID: uint64(id), Epoch: s.core.epoch})
	}
	return list
}

// back is an order as its worker refuses it: without the requests answered=(1,2).
func (a arguments) back(s *script) *infer.Order {
	o := &infer.Order{ID: a.id(), Epoch: s.core.epoch}
	if b := s.core.orders[keyOf(o)]; b != nil {
		for _, it := range b.Items {
			if n := it.Work.Request; !slices.Contains(a.numbers("answered"), int64(n.Number)) {
				o.Requests = append(o.Requests, &infer.Request{Work: it.Work})
			}
		}
	}
	return o
}

// numbers reads key=(1,2,3).
func (a arguments) numbers(key string) []int64 {
	var list []int64
	for _, arg := range a.d.CmdArgs {
		if arg.Key != key {
			continue
		}
		for _, text := range arg.Vals {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				a.t.Fatalf("%s: %v", a.d.Pos, err)
			}
			list = append(list, n)
		}
	}
	return list
}

func (a arguments) ref(position int) infer.ModelRef {
	return infer.ModelRef{Name: a.d.CmdArgs[position].Key, Version: 1, Generation: uint64(a.number("gen", 1))}
}

func (a arguments) instance() infer.InstanceID {
	var id infer.InstanceID
	if _, err := fmt.Sscanf(a.d.CmdArgs[0].Key, "%d/%d", &id.Worker, &id.Slot); err != nil {
		a.t.Fatalf("%s: want WORKER/SLOT: %v", a.d.Pos, err)
	}
	return id
}

func (a arguments) id() (n uint64) {
	if _, err := fmt.Sscan(a.d.CmdArgs[0].Key, &n); err != nil {
		a.t.Fatalf("%s: want a number: %v", a.d.Pos, err)
	}
	return n
}

func (a arguments) number(key string, otherwise int) int {
	a.d.MaybeScanArgs(a.t, key, &otherwise)
	return otherwise
}

func (a arguments) text(key, otherwise string) string {
	a.d.MaybeScanArgs(a.t, key, &otherwise)
	return otherwise
}

func (a arguments) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		a.t.Fatalf("%s: %v", a.d.Pos, err)
	}
	return d
}
