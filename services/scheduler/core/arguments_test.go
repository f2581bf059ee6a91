package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
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
			Instance: a.instance(), Model: a.ref(1), Name: a.d.CmdArgs[1].Key + "_0", Credits: a.number("credits", 1), Pipelined: a.number("pipelined", 0), Device: a.text("device", "cpu"),
		}}
	case "retire":
		return &Event{Kind: Retire, Instance: a.instance()}
	case "memory":
		return &Event{Kind: MemoryReported, Instance: infer.InstanceID{Worker: a.id()}, Memory: int64(a.number("bytes", 0))}
	case "submit":
		return &Event{Kind: Submit, Item: a.item(s)}
	case "cancel":
		return &Event{Kind: Cancel, Unit: a.unit()}
	case "complete":
		return a.completion(s)
	case "done":
		return a.unitDone(s)
	}
	return a.membershipEvent(s)
}

// membershipEvent reads the commands about leaderships, and about workers and
// gateways that come and go.
func (a arguments) membershipEvent(s *script) *Event {
	until := s.now.Add(a.duration(a.text("by", "0s")))
	s.revision++
	switch a.d.Cmd {
	case "lead":
		e := &Event{Kind: BecomeLeader, Epoch: a.id(), Until: until}
		stored := &History{IncompleteBefore: uint64(a.number("before", 0))}
		for _, n := range a.numbers("recorded") {
			stored.Workers = append(stored.Workers, uint64(n))
		}
		if a.d.HasArg("unknown") {
			stored = nil
		}
		e.History = Inherit(stored, e.Epoch)
		return e
	case "stepdown":
		return &Event{Kind: StepDown}
	case "lease":
		var worker uint64
		if _, err := fmt.Sscan(a.d.CmdArgs[1].Key, &worker); err != nil {
			a.t.Fatalf("%s: want a worker: %v", a.d.Pos, err)
		}
		return &Event{Kind: LeaseHeld, Key: a.d.CmdArgs[0].Key, Instance: infer.InstanceID{Worker: worker}, Revision: s.revision}
	case "unlease":
		return &Event{Kind: LeaseEnded, Key: a.d.CmdArgs[0].Key, Released: a.d.HasArg("released"), Revision: s.revision}
	case "connect":
		return &Event{Kind: WorkerConnected, Instance: a.worker(), Held: a.held(a.id())}
	case "disconnect":
		return &Event{Kind: WorkerDisconnected, Instance: a.worker(), Until: until, Batches: a.batches(s)}
	case "lose":
		return &Event{Kind: WorkerLost, Instance: a.worker()}
	case "return":
		e := &Event{Kind: BatchReturned, Batches: []*infer.Batch{a.returned(s)}, Reason: errs.Bug}
		switch {
		case a.d.HasArg("gone"):
			e.Reason = errs.NoWorker
		case a.d.HasArg("unreachable"):
			e.Reason = errs.PeerUnreachable
		case a.d.HasArg("away"):
			e.Reason = errs.InstanceAway
		}
		return e
	case "gatewaylost":
		return &Event{Kind: GatewayDisconnected, Origin: uint64(a.number("origin", 0))}
	}
	a.t.Fatalf("unknown command %s", a.d.Cmd)
	return nil
}

func (a arguments) worker() infer.InstanceID { return infer.InstanceID{Worker: a.id()} }

func (a arguments) unit() infer.Unit {
	return infer.Unit{Request: infer.RequestID{Number: a.id()}, Iteration: uint32(a.number("iteration", 0))}
}

// batchID is the batch named first, of this scheduler unless epoch= says another.
func (a arguments) batchID(s *script) infer.BatchID {
	return infer.BatchID{Epoch: uint64(a.number("epoch", int(s.core.epoch))), Number: a.id()}
}

func (a arguments) completion(s *script) *Event {
	f := &infer.InstanceFree{Batch: a.batchID(s), Credits: a.number("credits", 1), Executions: 1}
	f.Timing = infer.Timing{Start: s.now.Add(-a.duration(a.text("took", "0s"))), Done: s.now}
	if b := s.core.batches[f.Batch]; b != nil {
		f.Instance = b.Instance
	}
	for _, o := range a.texts("outcomes") {
		f.Outcomes = append(f.Outcomes, map[string]infer.Outcome{"succeeded": infer.Succeeded, "failed": infer.Failed, "canceled": infer.Canceled, "rejected": infer.Rejected}[o])
	}
	for _, end := range a.texts("ends") {
		f.Ends = append(f.Ends, map[string]infer.UnitEnd{"done": infer.UnitEnded, "more": infer.UnitMore, "again": infer.UnitAgain}[end])
	}
	return &Event{Kind: InstanceFree, Ended: f}
}

// unitDone is the end of a unit, of the batch in which it is.
func (a arguments) unitDone(s *script) *Event {
	u := a.unit()
	d := &infer.UnitDone{Work: infer.Work{Request: u.Request, Step: u.Step, Iteration: u.Iteration}}
	if it := s.core.items[keyOf(u)]; it != nil && it.batch != nil {
		d.Batch = it.batch.ID
	}
	return &Event{Kind: UnitDone, Done: d}
}

func (a arguments) item(s *script) *Item {
	width := int64(a.number("width", 4))
	size := int64(a.number("size", 1))
	it := &Item{
		Request: &infer.Request{
			Timeout:  a.duration(a.text("timeout", "0s")),
			Priority: uint64(a.number("priority", 0)),
			Inputs:   []infer.Tensor{{Name: "x", Shape: tensor.Shape{size, width}}},
		},
		Work:      infer.Work{Request: infer.RequestID{Origin: uint64(a.number("origin", 0)), Number: a.id()}, Attempt: uint32(a.number("attempt", 1)), Epoch: uint64(a.number("from", 0))},
		Model:     a.ref(1),
		BatchSize: size,
		Bytes:     int64(a.number("bytes", 4)),
		Enqueued:  s.now,
	}
	if id := a.text("seq", ""); id != "" {
		it.Request.Sequence = correlationOf(id)
	}
	it.Request.Sequence.Start, it.Request.Sequence.End = a.d.HasArg("start"), a.d.HasArg("end")
	if a.d.HasArg("y") {
		it.Request.Inputs = append(it.Request.Inputs, infer.Tensor{Name: "y", Shape: tensor.Shape{size, 4}})
	}
	if n := a.number("by", 0); n != 0 {
		it.Request.Parent.Batch.Number = uint64(n)
	}
	if n := a.number("of", 0); n != 0 {
		it.Request.Parent.Alone, it.Request.Parent.Unit.Request.Number = true, uint64(n)
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
		Decoupled:    a.d.HasArg("decoupled"),
		Inputs:       []modelconfig.IO{{Name: "x", Dims: tensor.Shape{width}, Ragged: a.d.HasArg("ragged")}},
	}
	if a.d.HasArg("buckets") {
		c.Padding = &modelconfig.Padding{Buckets: a.numbers("buckets"), Inputs: []modelconfig.PaddedInput{{Name: "x", Dims: []int{0}}}}
	}
	if a.d.HasArg("idempotent") {
		c.Parameters = map[string]string{Idempotent: "true"}
	}
	if a.d.HasArg("optional") {
		c.Inputs = append(c.Inputs, modelconfig.IO{Name: "y", Dims: tensor.Shape{4}, Optional: true})
	}
	c.Groups = []modelconfig.InstanceGroup{{Name: a.d.CmdArgs[0].Key, Priority: uint32(a.number("turns", 1))}}
	for _, text := range a.texts("needs") {
		name, n, kind := a.counted(text)
		c.Groups[0].Resources = append(c.Groups[0].Resources, modelconfig.Resource{Name: name, Count: n, Global: kind == "global"})
	}
	switch {
	case a.d.HasArg("nobatch"):
		return c
	case a.d.HasArg("direct") || a.d.HasArg("oldest"):
		c.Sequences = a.sequences(c.MaxBatchSize)
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

func (a arguments) rateLimit() *RateLimit {
	l := &RateLimit{}
	for _, text := range a.texts("counts") {
		name, n, device := a.counted(text)
		count := resources.Count{Name: name, Count: n, Device: resources.EachDevice}
		if device != "" {
			count.Device = deviceNumber(":" + device)
		}
		l.Counts = append(l.Counts, count)
	}
	return l
}

// counted reads NAME:COUNT[:REST].
func (a arguments) counted(text string) (name string, n uint32, rest string) {
	name, text, _ = strings.Cut(text, ":")
	text, rest, _ = strings.Cut(text, ":")
	if _, err := fmt.Sscan(text, &n); err != nil {
		a.t.Fatalf("%s: %v", a.d.Pos, err)
	}
	return name, n, rest
}

func (a arguments) sequences(most int64) *modelconfig.SequenceBatching {
	s := &modelconfig.SequenceBatching{
		Oldest: a.d.HasArg("oldest"), Iterative: a.d.HasArg("iterative"),
		Slots:               a.number("slots", int(max(most, 1))),
		MaxIdleMicros:       uint64(a.duration(a.text("idle", "1s")) / time.Microsecond),
		MaxQueueDelayMicros: uint64(a.duration(a.text("delay", "0s")) / time.Microsecond),
		PreferredSizes:      a.numbers("preferred"),
	}
	if share := a.text("utilization", "0"); share != "0" {
		least, err := strconv.ParseFloat(share, 32)
		if err != nil {
			a.t.Fatalf("%s: %v", a.d.Pos, err)
		}
		s.MinSlotUtilization = float32(least)
	}
	return s
}

// correlation reads a correlation ID: a number, or a text.
func correlationOf(text string) (s infer.Sequence) {
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return infer.Sequence{ID: n}
	}
	return infer.Sequence{Key: text}
}

func (a arguments) held(worker uint64) *infer.Held {
	var started infer.Recent
	for _, n := range a.numbers("started") {
		started.Add(infer.RequestID{Number: uint64(n)})
	}
	held := new(infer.Held)
	for _, text := range a.texts("sequences") {
		var h infer.HeldSequence
		var id string
		if _, err := fmt.Sscanf(text, "%d/%d/%s", &h.Instance.Slot, &h.BatchSlot, &id); err != nil {
			a.t.Fatalf("%s: want SLOT/INDEX/ID: %v", a.d.Pos, err)
		}
		id, request, again := strings.Cut(id, "/") // of a request between iterations
		if again {
			if _, err := fmt.Sscanf(request, "%d.%d", &h.Request.Request.Number, &h.Request.Iteration); err != nil {
				a.t.Fatalf("%s: want SLOT/INDEX/ID/REQUEST.ITERATION: %v", a.d.Pos, err)
			}
			started.Add(h.Request.Request)
		}
		h.Sequence, h.Instance.Worker, h.Idle = correlationOf(id), worker, time.Second
		h.Model = infer.ModelRef{Name: a.text("of", "m"), Version: 1, Generation: 1}
		held.Sequences = append(held.Sequences, h)
	}
	if n := a.numbers("runs"); n != nil {
		r := infer.Running{
			Batch: infer.BatchID{Epoch: uint64(n[1]), Number: uint64(n[0])}, Instance: infer.InstanceID{Worker: worker, Slot: uint32(n[2])},
			InstanceFree: a.d.HasArg("free"),
		}
		for _, id := range n[3:] {
			r.Units = append(r.Units, infer.Work{Request: infer.RequestID{Number: uint64(id)}, Attempt: 1})
		}
		held.Running = []infer.Running{r}
	}
	held.Started = started.Started()
	return held
}

func (a arguments) batches(s *script) (list []*infer.Batch) {
	for _, id := range a.numbers("batches") {
		list = append(list, &infer.Batch{ID: infer.BatchID{Epoch: s.core.epoch, Number: uint64(id)}})
	}
	return list
}

// returned is a batch as its worker gives it back: without the requests
// answered=(1,2).
func (a arguments) returned(s *script) *infer.Batch {
	o := &infer.Batch{ID: infer.BatchID{Epoch: s.core.epoch, Number: a.id()}}
	if b := s.core.batches[o.ID]; b != nil {
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
	for _, text := range a.texts(key) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			a.t.Fatalf("%s: %v", a.d.Pos, err)
		}
		list = append(list, n)
	}
	return list
}

// texts reads key=(a,b).
func (a arguments) texts(key string) (list []string) {
	for _, arg := range a.d.CmdArgs {
		if arg.Key == key {
			list = append(list, arg.Vals...)
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
