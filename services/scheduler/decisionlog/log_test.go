package decisionlog_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "rewrite the golden file")

const begin = mono.Time(time.Second)

// log writes a log by f, and returns its bytes.
func log(t testing.TB, f func(*decisionlog.Writer)) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	w := decisionlog.New(decisionlog.Config{
		Path: path, Log: zap.NewNop(),
		Header: decisionlog.Header{Release: "1.2.3", Pool: "default", Unix: 1_700_000_000_000_000_000, Mono: begin, MaxRequests: 100, MaxBytes: 1 << 20},
	})
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	f(w)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// read returns the steps of a log, and the error that ended it.
func read(text []byte) (steps []decisionlog.Step, err error) {
	r, err := decisionlog.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	for {
		var s decisionlog.Step
		if err := r.Next(&s); err != nil {
			return steps, err
		}
		steps = append(steps, s)
	}
}

var (
	variable = infer.ModelRef{Namespace: "/models", Name: "texts", Version: 3, Generation: 17}
	plain    = infer.ModelRef{Name: "digits", Version: 1, Generation: 2}
	slot     = infer.InstanceID{Worker: 1 << 60, Slot: 3}
	id       = infer.RequestID{Origin: 1<<60 + 5, Number: 77}
)

func configs() (ofVariable, ofPlain *modelconfig.Config) {
	ofVariable = &modelconfig.Config{
		Name: "texts", MaxBatchSize: 8,
		Inputs: []modelconfig.IO{{Name: "ids", Dims: tensor.Shape{-1}}, {Name: "mask", Dims: tensor.Shape{2}, Optional: true, Ragged: true}},
		Batching: &modelconfig.DynamicBatching{
			PreferredSizes: []int64{4, 8}, MaxQueueDelayMicros: 100, PreserveOrdering: true, PriorityLevels: 2, DefaultPriority: 1,
			DefaultPolicy: modelconfig.QueuePolicy{Delay: true, DefaultTimeoutMicros: 5, AllowTimeoutOverride: true, MaxQueueSize: 9},
			Policies:      map[uint64]modelconfig.QueuePolicy{2: {MaxQueueSize: 1}},
		},
		Parameters: map[string]string{core.Idempotent: "true"},
	}
	ofPlain = &modelconfig.Config{Name: "digits", Inputs: []modelconfig.IO{{Name: "x", Dims: tensor.Shape{4}}}}
	return ofVariable, ofPlain
}

func item(ref infer.ModelRef, r infer.Request) *core.Item {
	r.Model = ref
	it := &core.Item{Request: &r, Work: r.Work, Model: ref, BatchSize: r.BatchSize, Bytes: 640, Enqueued: begin, Deadline: r.Deadline}
	return it
}

// history has every kind of event, with every field that the core reads.
func history() []core.Event {
	ofVariable, ofPlain := configs()
	full := item(variable, infer.Request{
		Work: infer.Work{Request: id, Attempt: 2, Epoch: 9}, BatchSize: 3, Priority: 2, Timeout: time.Millisecond, Deadline: begin.Add(time.Second),
		Tenant: "acme", Share: infer.Share{Band: 2, Minimum: 50, Weight: 8000},
		Inputs: []infer.Tensor{{Name: "ids", Shape: tensor.Shape{3, 128}}, {Name: "mask", Shape: tensor.Shape{3, 2}}},
	})
	full.Work.Step, full.Work.Iteration = 1, 2
	bare := infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: id.Origin, Number: 78}, Attempt: 1}, BatchSize: 1}
	early := bare
	early.Inputs = []infer.Tensor{{Name: "x", Shape: tensor.Shape{4}}}
	returned := []*infer.Batch{{ID: infer.BatchID{Epoch: 9, Number: 5}, Instance: slot, Requests: []*infer.Request{{Work: full.Work, Model: variable}}}}
	timing := infer.Timing{Start: begin + 100, InputDone: begin + 200, InferDone: begin + 400, Done: begin + 450}
	return []core.Event{
		{Kind: core.Submit, Item: item(plain, early)}, // its model is not known yet, so its inputs may matter
		{Kind: core.Configure, Model: &core.Model{Ref: variable, Config: ofVariable}},
		{Kind: core.Configure, Model: &core.Model{Ref: plain, Config: ofPlain}},
		{Kind: core.BecomeLeader, Epoch: 9, History: core.History{Workers: []uint64{4, slot.Worker}, IncompleteBefore: 8}, Until: begin.Add(time.Minute)},
		{Kind: core.LeaseHeld, Key: "w1", Instance: infer.InstanceID{Worker: slot.Worker}, Revision: 4},
		{Kind: core.WorkerConnected, Instance: infer.InstanceID{Worker: slot.Worker}, Held: &infer.Held{
			Epoch:   8,
			Running: []infer.Running{{Batch: infer.BatchID{Epoch: 8, Number: 3}, InstanceFree: true, Instance: slot, Units: []infer.Work{full.Work}, BatchSizes: []int64{3}}},
			Started: []infer.Started{{Origin: id.Origin, Forgotten: 1, First: 64, Bits: []byte{255, 1}}},
		}},
		{Kind: core.Recorded, Version: 2},
		{Kind: core.Learned, Model: &core.Model{Ref: variable}, Costs: []infer.Cost{
			{Device: "gpu", Magnitude: 7, BatchSize: 4, Executions: 12, Mean: 3 * time.Millisecond, Deviation: 0.125},
			{Device: "cpu", BatchSize: 1, Executions: 1, Mean: time.Second},
		}},
		{Kind: core.Granted, Grant: &infer.Grant{
			Instance: slot, Model: variable, Name: "texts_0", Device: "gpu:1", Credits: 2, Pipelined: 1,
			Warmed: []infer.Cost{{Magnitude: 3, BatchSize: 2, Executions: 2, Mean: time.Millisecond}},
		}},
		{Kind: core.MemoryReported, Instance: slot, Memory: 1 << 30},
		{Kind: core.Submit, Item: full},
		{Kind: core.Submit, Item: item(plain, bare)},
		{Kind: core.InstanceFree, Ended: &infer.InstanceFree{
			Batch: infer.BatchID{Epoch: 9, Number: 1}, Instance: slot, Outcomes: []infer.Outcome{infer.Succeeded, infer.Failed}, Executions: 2, BatchSize: 4, Timing: timing,
			Ends: []infer.UnitEnd{infer.UnitMore, infer.UnitEnded},
		}},
		{Kind: core.InstanceFree, Ended: &infer.InstanceFree{
			Batch: infer.BatchID{Epoch: 9, Number: 2}, Instance: slot, Outcomes: []infer.Outcome{infer.Succeeded, infer.Succeeded}, Executions: 1, Credits: 1, BatchSize: 2, Timing: timing,
		}},
		{Kind: core.UnitDone, Done: &infer.UnitDone{
			Batch: infer.BatchID{Epoch: 9, Number: 1}, Instance: slot, Work: infer.Work{Request: id, Step: 1, Iteration: 2, Attempt: 2},
			Outcome: infer.Failed, FirstResponse: begin - 5, At: begin,
		}},
		{Kind: core.Cancel, Unit: infer.Unit{Request: id}},
		{Kind: core.BatchReturned, Batches: returned, Reason: errs.NoWorker},
		{Kind: core.WorkerDisconnected, Instance: infer.InstanceID{Worker: slot.Worker}, Batches: returned, Until: begin.Add(time.Second)},
		{Kind: core.GatewayDisconnected, Origin: id.Origin},
		{Kind: core.Retire, Instance: slot},
		{Kind: core.LeaseEnded, Key: "w1", Revision: 5, Released: true},
		{Kind: core.WorkerLost, Instance: infer.InstanceID{Worker: slot.Worker}, Released: true},
		{Kind: core.Remove, Model: &core.Model{Ref: plain}},
		{Kind: core.StepDown},
		{Kind: core.Tick},
	}
}

// decided are decisions of several forms.
func decided(i int) []core.Decision {
	return [][]core.Decision{
		nil,
		{{Kind: core.Refuse, Reason: errs.DeadlineUnmeetable, Unit: infer.Unit{Request: id, Attempt: 1}, A: 12345}},
		{{Kind: core.Wait, Unit: infer.Unit{Request: id, Attempt: 1}, A: int64(begin.Add(time.Millisecond)), B: 3}},
		{
			{Kind: core.Complete, Batch: infer.BatchID{Epoch: 9, Number: 1}, Instance: slot},
			{Kind: core.Abort, Reason: errs.Canceled, Unit: infer.Unit{Request: id, Step: 4, Attempt: 3}, Batch: infer.BatchID{Epoch: 9, Number: 2}},
		},
	}[i%4]
}

// ofSequences are events about a model that batches sequences.
func ofSequences() []core.Event {
	ref := infer.ModelRef{Name: "chat", Version: 1, Generation: 1}
	return []core.Event{
		{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: &modelconfig.Config{Name: "chat", MaxBatchSize: 4, Sequences: &modelconfig.SequenceBatching{
			Oldest: true, Slots: 9, MaxIdleMicros: 5, MaxQueueDelayMicros: 6, MinSlotUtilization: 0.5, PreferredSizes: []int64{2, 4}, Iterative: true,
		}}}},
		{Kind: core.WorkerConnected, Instance: infer.InstanceID{Worker: 4}, Held: &infer.Held{Sequences: []infer.HeldSequence{
			{Model: ref, Sequence: infer.Sequence{Key: "a"}, Instance: infer.InstanceID{Worker: 4, Slot: 1}, BatchSlot: 3, Idle: time.Second},
			{Model: ref, Sequence: infer.Sequence{ID: 8}, BatchSlot: 4, Request: infer.Work{Request: id, Iteration: 3, Attempt: 1, Epoch: 2}},
			{Model: ref, Sequence: infer.Sequence{ID: 7}},
		}}},
		{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 4, Slot: 1}, Model: ref, Credits: 1}},
		{Kind: core.Submit, Item: item(ref, infer.Request{
			Work: infer.Work{Request: id, Attempt: 1}, BatchSize: 1, Sequence: infer.Sequence{ID: 1 << 63, Start: true, End: true},
		})},
		{Kind: core.Submit, Item: item(ref, infer.Request{
			Work: infer.Work{Request: infer.RequestID{Origin: id.Origin, Number: 78}, Attempt: 1}, BatchSize: 1, Sequence: infer.Sequence{Key: "a"},
		})},
	}
}

// limited is the configuration of a model whose instances need resources.
func limited() *modelconfig.Config {
	return &modelconfig.Config{Name: "limited", Groups: []modelconfig.InstanceGroup{
		{Name: "few", Priority: 1, Resources: []modelconfig.Resource{{Name: "r", Count: 1}, {Name: "g", Global: true, Count: 2}}},
		{Name: "rare", Priority: 3},
	}}
}

func TestEventsAndDecisionsAreReadAsTheyWereWritten(t *testing.T) {
	events := append(history(), ofSequences()...)
	events = append(events, core.Event{Kind: core.Configure, Model: &core.Model{Ref: infer.ModelRef{Name: "limited", Version: 1, Generation: 1}, Config: limited()}})
	events = append(events, core.Event{Kind: core.Submit, Item: item(variable, infer.Request{
		Work: infer.Work{Request: id, Attempt: 1}, BatchSize: 1,
		Parent: infer.Parent{Batch: infer.BatchID{Epoch: 9, Number: 7}, Unit: infer.Unit{Request: id, Iteration: 3, Attempt: 2}, Alone: true},
	})})
	padded := infer.ModelRef{Name: "padded", Version: 1}
	events = append(events, core.Event{Kind: core.Configure, Model: &core.Model{Ref: padded, Config: &modelconfig.Config{
		Name: padded.Name, Decoupled: true, Inputs: []modelconfig.IO{{Name: "x", Dims: tensor.Shape{4}}, {Name: "ids", Dims: tensor.Shape{-1}}},
		Padding: &modelconfig.Padding{Buckets: []int64{16, 32}, Inputs: []modelconfig.PaddedInput{{Name: "ids", Dims: []int{0}}}},
	}}})
	text := log(t, func(w *decisionlog.Writer) {
		for i := range events {
			w.Event(begin.Add(time.Duration(i*i)), &events[i])
			w.Decided(decided(i))
		}
	})
	steps, err := read(text)
	if !errors.Is(err, io.EOF) || len(steps) != len(events) {
		t.Fatalf("%d steps and %v, want %d and the end", len(steps), err, len(events))
	}
	options := cmp.Options{cmpopts.IgnoreUnexported(core.Item{}, core.Decision{}, modelconfig.Config{}), cmpopts.EquateEmpty()}
	seen := make(map[core.EventKind]bool)
	for i := range events {
		want := decisionlog.Step{Now: begin.Add(time.Duration(i * i)), Event: events[i]}
		for _, d := range decided(i) {
			want.Decisions = append(want.Decisions, decisionlog.Decision{Decision: d})
		}
		if it := events[i].Item; it != nil {
			it.Request.Work, it.Request.Model = it.Work, it.Model
		}
		if diff := cmp.Diff(want, steps[i], options); diff != "" {
			t.Errorf("step %d (-written +read):\n%s", i, diff)
		}
		seen[events[i].Kind] = true
	}
	for kind := core.Submit; kind <= core.Tick; kind++ {
		if !seen[kind] {
			t.Errorf("the history has no event of kind %d", kind)
		}
	}
}

// TestTheFormatIsTheSame fails when the bytes change: then the version has to.
func TestTheFormatIsTheSame(t *testing.T) {
	golden := filepath.Join("testdata", "version3.log")
	events := history()
	text := log(t, func(w *decisionlog.Writer) {
		for i := range events {
			w.Event(begin.Add(time.Duration(i*i)), &events[i])
			w.Decided(decided(i))
		}
	})
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("the log differs from %s: %d bytes, there %d", golden, len(text), len(want))
	}
}

// run drives a core with two models and one instance each through requests of
// two gateways, with deadlines, cancellations and priorities, by a seed.
func run(w *decisionlog.Writer, requests int) {
	c, now := core.New(core.Config{MaxRequests: 100}), begin
	var running []infer.InstanceFree
	var step func(e core.Event)
	step = func(e core.Event) {
		w.Event(now, &e)
		decisions := c.Step(now, &e)
		w.Decided(decisions)
		record := int64(0)
		for i := range decisions {
			switch d := &decisions[i]; d.Kind {
			case core.Dispatch:
				running = append(running, infer.InstanceFree{
					Batch: d.Batch, Instance: d.Instance, Executions: 1, BatchSize: d.A, Credits: 1,
					Outcomes: make([]infer.Outcome, len(d.Members().Items)),
				})
			case core.Record:
				record = d.A
			}
		}
		if record != 0 {
			step(core.Event{Kind: core.Recorded, Version: uint64(record)})
		}
	}
	ofVariable, ofPlain := configs()
	step(core.Event{Kind: core.BecomeLeader, Epoch: 9})
	step(core.Event{Kind: core.Configure, Model: &core.Model{Ref: variable, Config: ofVariable}})
	step(core.Event{Kind: core.Configure, Model: &core.Model{Ref: plain, Config: ofPlain}})
	step(core.Event{Kind: core.WorkerConnected, Instance: infer.InstanceID{Worker: slot.Worker}, Held: &infer.Held{}})
	for i, ref := range []infer.ModelRef{variable, plain} {
		step(core.Event{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: slot.Worker, Slot: uint32(i)}, Model: ref, Device: "cpu", Credits: 1}})
	}
	for n := range requests {
		now = now.Add(time.Duration(n*7919%1000) * time.Microsecond)
		r := infer.Request{
			Work: infer.Work{Request: infer.RequestID{Origin: id.Origin + uint64(n%2), Number: uint64(n + 1)}, Attempt: 1}, BatchSize: 1, Priority: uint64(n % 3),
			Inputs: []infer.Tensor{{Name: "ids", Shape: tensor.Shape{1, int64(16 << (n % 3))}}},
		}
		if n%4 == 0 {
			r.Deadline = now.Add(3 * time.Millisecond)
		}
		it := item([]infer.ModelRef{variable, plain}[n%5/4], r)
		it.Enqueued = now
		step(core.Event{Kind: core.Submit, Item: it})
		if n%13 == 0 {
			step(core.Event{Kind: core.Cancel, Unit: infer.Unit{Request: it.Work.Request}})
		}
		if n%3 == 0 && len(running) > 0 {
			done := running[0]
			running = running[1:]
			done.Timing = infer.Timing{Start: now.Add(-time.Duration(200+n%50) * time.Microsecond), InputDone: now, InferDone: now, Done: now}
			step(core.Event{Kind: core.InstanceFree, Ended: &done})
		}
	}
}

// TestALogCanBeReplayed holds that a log has all that the core reads: a new core
// that gets the events of the log decides the same.
func TestALogCanBeReplayed(t *testing.T) {
	text := log(t, func(w *decisionlog.Writer) { run(w, 3000) })
	v, err := decisionlog.Verify(reader(t, text))
	if err != nil || v.Differs != "" || v.Steps < 4000 || v.Decisions < 3000 {
		t.Fatalf("%+v, %v", v, err)
	}
	t.Logf("%d steps, %d decisions: %d bytes for each request", v.Steps, v.Decisions, len(text)/3000)
	if v, err := decisionlog.Verify(reader(t, text[:len(text)-1])); !errors.Is(err, decisionlog.ErrTruncated) || v.Differs != "" || v.Steps == 0 {
		t.Errorf("a log that was cut off: %+v, %v", v, err)
	}
}

// The first decision that is not as logged is named with both.
func TestTheFirstDecisionThatDiffersIsNamed(t *testing.T) {
	ref, worker := infer.ModelRef{Name: "m", Version: 1, Generation: 1}, infer.InstanceID{Worker: 4}
	events := []core.Event{
		{Kind: core.BecomeLeader, Epoch: 9},
		{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: &modelconfig.Config{Name: "m"}}},
		{Kind: core.WorkerConnected, Instance: worker, Held: &infer.Held{}},
		{Kind: core.Recorded, Version: 2},
		{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 4, Slot: 1}, Model: ref, Name: "m_0", Device: "cpu", Credits: 1}},
		{Kind: core.Submit, Item: item(ref, infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: 7}, Attempt: 1}, BatchSize: 1})},
	}
	for want, edit := range map[string]func([]core.Decision) []core.Decision{
		"": func(all []core.Decision) []core.Decision { return all },
		"was Dispatch batch 9-1 on instance 2 of worker 4, 1-7": func(all []core.Decision) []core.Decision { all[0].Instance.Slot = 2; return all },
		"decision 0 was not logged: Dispatch":                   func([]core.Decision) []core.Decision { return nil },
		"decision 1, Refuse queue_full request 1-8": func(all []core.Decision) []core.Decision {
			return append(all, core.Decision{Kind: core.Refuse, Reason: errs.QueueFull, Unit: infer.Unit{Request: infer.RequestID{Origin: 1, Number: 8}}})
		},
	} {
		text := log(t, func(w *decisionlog.Writer) {
			c := core.New(core.Config{})
			for i := range events {
				w.Event(begin, &events[i])
				decided := slices.Clone(c.Step(begin, &events[i]))
				if events[i].Kind == core.Submit {
					decided = edit(decided)
				}
				w.Decided(decided)
			}
		})
		v, err := decisionlog.Verify(reader(t, text))
		if err != nil || (v.Differs == "") != (want == "") || !strings.Contains(v.Differs, want) {
			t.Errorf("%+v, %v, want %q", v, err, want)
		}
	}
}

func reader(t *testing.T, text []byte) *decisionlog.Reader {
	t.Helper()
	r, err := decisionlog.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The header and the configurations have what a rate limiter reads.
func TestTurnsAndWaitsForResourcesAreReplayed(t *testing.T) {
	header := decisionlog.Header{RateLimited: true, Resources: []string{"r:1", "g:2:0"}}
	limits, err := header.Limits()
	if err != nil {
		t.Fatal(err)
	}
	ref, worker := infer.ModelRef{Name: "limited", Version: 1, Generation: 1}, infer.InstanceID{Worker: 4}
	events := []core.Event{
		{Kind: core.BecomeLeader, Epoch: 9},
		{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: limited()}},
		{Kind: core.WorkerConnected, Instance: worker, Held: &infer.Held{}},
		{Kind: core.Recorded, Version: 2},
		{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 4, Slot: 1}, Model: ref, Name: "few_0", Device: "gpu:0", Credits: 1}},
		{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 4, Slot: 2}, Model: ref, Name: "few_1", Device: "gpu:0", Credits: 1}},
		{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 4, Slot: 3}, Model: ref, Name: "rare_0", Device: "gpu:0", Credits: 1}},
	}
	for n := range uint64(4) {
		work := infer.Work{Request: infer.RequestID{Origin: 1, Number: n + 1}, Attempt: 1}
		events = append(events, core.Event{Kind: core.Submit, Item: item(ref, infer.Request{Work: work, BatchSize: 1})})
	}
	text := log(t, func(w *decisionlog.Writer) {
		c := core.New(limits)
		for i := range events {
			w.Event(begin, &events[i])
			w.Decided(c.Step(begin, &events[i]))
		}
	})
	steps, err := read(text)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	c := core.New(limits)
	var on []uint32
	waits := 0
	for i := range steps {
		for j, d := range c.Step(steps[i].Now, &steps[i].Event) {
			if diff := cmp.Diff(steps[i].Decisions[j].Decision, d, cmpopts.IgnoreUnexported(core.Decision{})); diff != "" {
				t.Fatalf("step %d, decision %d (-logged +replayed):\n%s", i, j, diff)
			}
			switch d.Kind {
			case core.Dispatch:
				on = append(on, d.Instance.Slot)
			case core.Wait:
				waits++
			}
		}
	}
	if diff := cmp.Diff([]uint32{1, 3}, on); diff != "" || waits != 1 {
		t.Errorf("%d waits, want 1; the instances that run (-want +got):\n%s", waits, diff)
	}
}

// A dispatch names for each unit its slot and controls.
func TestSlotsOfSequencesAreReplayed(t *testing.T) {
	lead := core.Event{Kind: core.BecomeLeader, Epoch: 9, History: core.History{Workers: []uint64{4}}, Until: begin.Add(time.Minute)}
	events := append([]core.Event{lead}, ofSequences()...)
	events = append(events, core.Event{Kind: core.Tick}) // the batch has waited for company
	var want []infer.Slot
	text := log(t, func(w *decisionlog.Writer) {
		c := core.New(core.Config{})
		for i := range events {
			now := begin.Add(time.Duration(i) * time.Millisecond)
			w.Event(now, &events[i])
			decisions := c.Step(now, &events[i])
			w.Decided(decisions)
			for j := range decisions {
				if d := &decisions[j]; d.Kind == core.Dispatch {
					want = append(want, d.Members().Slots...)
				}
			}
		}
	})
	steps, err := read(text)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var got []infer.Slot
	for _, s := range steps {
		for _, d := range s.Decisions {
			got = append(got, d.Slots...)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 || !got[0].Sequence.Start {
		t.Errorf("%d slots were read (-written +read):\n%s", len(got), diff)
	}
}

func TestALogThatIsCutOffSaysSo(t *testing.T) {
	text := log(t, func(w *decisionlog.Writer) { run(w, 2000) })
	whole, err := read(text)
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	wholeBlocks := 0
	for n := len(text) - 1; n > 0; n -= 97 {
		steps, err := read(text[:n])
		switch {
		case errors.Is(err, io.EOF): // between two blocks
			wholeBlocks++
		case errs.Of(err) != errs.ConfigInvalid:
			t.Fatalf("the first %d bytes: %v", n, err)
		case len(steps) > 0 && !errors.Is(err, decisionlog.ErrTruncated):
			t.Fatalf("the first %d bytes: %v, want that it is truncated", n, err)
		}
		if len(steps) >= len(whole) {
			t.Fatalf("the first %d bytes have all %d steps", n, len(whole))
		}
	}
	if wholeBlocks > 2 {
		t.Errorf("%d prefixes look whole", wholeBlocks)
	}
}

func TestADamagedLogIsRefused(t *testing.T) {
	text := log(t, func(w *decisionlog.Writer) { run(w, 100) })
	flipped := bytes.Clone(text)
	flipped[len(flipped)-10] ^= 1
	huge := bytes.Clone(text)
	binary.LittleEndian.PutUint32(huge[bytes.IndexByte(huge, '\n')+1:], 1<<31)
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"empty":          {nil, "is no decision log"},
		"something else": {[]byte("name: \"digits\"\n"), "is no decision log"},
		"later format":   {[]byte("nereid decision log 4\n"), `format "4"`},
		"no header":      {[]byte("nereid decision log 3\n"), "damaged"},
		"flipped bit":    {flipped, "checksum"},
		"huge block":     {huge, "malformed"},
	} {
		if _, err := read(c.text); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// warnings runs a writer to its end after f, and returns what it logged.
func warnings(t *testing.T, path string, bound int64, f func(*decisionlog.Writer)) []observer.LoggedEntry {
	t.Helper()
	seen, logged := observer.New(zap.WarnLevel)
	w := decisionlog.New(decisionlog.Config{Path: path, MaxBytes: bound, Log: zap.New(seen)})
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	f(w)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx)
	f(w) // nobody writes it, and nobody waits
	return logged.All()
}

// large brings steps of more bytes than the writer keeps.
func large(w *decisionlog.Writer) {
	for i := range 200 {
		w.Event(begin, &core.Event{Kind: core.LeaseHeld, Key: strings.Repeat(string(rune('a'+i)), 60_000)})
		w.Decided(nil)
	}
}

func TestALogEndsWithOneWarning(t *testing.T) {
	dir := t.TempDir()
	requests := func(w *decisionlog.Writer) { run(w, 10_000) }
	for name, c := range map[string]struct {
		path  string
		bound int64
		write func(*decisionlog.Writer)
		want  string
	}{
		"full disk":    {"/dev/full", 0, requests, "no space left"},
		"slow disk":    {filepath.Join(dir, "slow"), 0, large, "too slow"}, // which nobody writes to yet
		"bound":        {filepath.Join(dir, "bound"), 200_000, requests, "--decision-log-bytes"},
		"nothing else": {filepath.Join(dir, "whole"), 0, requests, ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := warnings(t, c.path, c.bound, c.write)
			switch {
			case c.want == "" && len(all) == 0:
			case len(all) != 1 || c.want == "" || !strings.Contains(all[0].ContextMap()["error"].(string), c.want):
				t.Errorf("logged %v, want one warning of %q", all, c.want)
			}
			if c.path == "/dev/full" {
				return
			}
			text, err := os.ReadFile(c.path)
			if err != nil {
				t.Fatal(err)
			}
			if steps, err := read(text); !errors.Is(err, io.EOF) || len(steps) == 0 {
				t.Errorf("%d steps and %v, want what was written before", len(steps), err)
			}
			if c.bound > 0 && int64(len(text)) > c.bound+1000 { // and the header
				t.Errorf("the log has %d bytes, more than %d", len(text), c.bound)
			}
		})
	}
}

func TestALogThatCannotBeMadeIsRefused(t *testing.T) {
	w := decisionlog.New(decisionlog.Config{Path: filepath.Join(t.TempDir(), "missing", "log"), Log: zap.NewNop()})
	if err := w.Open(); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--decision-log=") {
		t.Errorf("got %v, want config_invalid that names the flag", err)
	}
}

// FuzzReader holds that no bytes stop the reader, or have it take memory that they
// do not fill.
func FuzzReader(f *testing.F) {
	f.Add(log(f, func(w *decisionlog.Writer) { run(w, 20) }))
	golden, err := os.ReadFile(filepath.Join("testdata", "version3.log"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := read(decisionlog.Resum(text)); err == nil {
			t.Error("no end")
		}
	})
}

// BenchmarkStep measures what a log adds to a step of the core: a request of one
// of eight models, of which each eighth completes a batch.
func BenchmarkStep(b *testing.B) {
	for _, logged := range []bool{false, true} {
		b.Run(fmt.Sprintf("logged=%t", logged), func(b *testing.B) {
			d := newDriven(b, logged)
			b.ReportAllocs()
			for b.Loop() {
				d.submit()
			}
		})
	}
}

// driven is a core whose instances complete when a full batch waits for each.
type driven struct {
	core    *core.Core
	log     *decisionlog.Writer // nil is none
	now     mono.Time
	next    uint64
	models  []infer.ModelRef
	spare   []*core.Item
	running []infer.InstanceFree
}

func newDriven(b *testing.B, logged bool) *driven {
	d := &driven{core: core.New(core.Config{MaxRequests: 1 << 16}), now: begin}
	if logged {
		d.log = decisionlog.New(decisionlog.Config{Path: filepath.Join(b.TempDir(), "log"), Log: zap.NewNop()})
		if err := d.log.Open(); err != nil {
			b.Fatal(err)
		}
		ctx, end := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			d.log.Run(ctx)
			close(ended)
		}()
		b.Cleanup(func() {
			end()
			<-ended
		})
	}
	d.step(&core.Event{Kind: core.BecomeLeader})
	d.step(&core.Event{Kind: core.WorkerConnected, Instance: infer.InstanceID{Worker: 1}, Held: &infer.Held{}})
	d.step(&core.Event{Kind: core.Recorded, Version: 2})
	config := &modelconfig.Config{MaxBatchSize: 8, Batching: &modelconfig.DynamicBatching{}}
	for i := range 8 {
		ref := infer.ModelRef{Name: fmt.Sprint("model", i), Version: 1, Generation: 1}
		d.models = append(d.models, ref)
		d.step(&core.Event{Kind: core.Configure, Model: &core.Model{Ref: ref, Config: config}})
		d.step(&core.Event{Kind: core.Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 1, Slot: uint32(i)}, Model: ref, Credits: 1}})
	}
	for range 1 << 10 {
		d.spare = append(d.spare, &core.Item{Request: &infer.Request{}})
	}
	return d
}

func (d *driven) submit() {
	d.now += 1000
	d.next++
	it := d.spare[len(d.spare)-1]
	d.spare = d.spare[:len(d.spare)-1]
	request := it.Request
	it.Reset()
	it.Request, it.Model, it.BatchSize, it.Bytes, it.Enqueued = request, d.models[d.next%8], 1, 64, d.now
	it.Work.Request.Number, it.Work.Attempt, it.Deadline = d.next, 1, d.now.Add(100*time.Millisecond)
	d.step(&core.Event{Kind: core.Submit, Item: it})
	if d.next%64 == 0 {
		n := len(d.running)
		for i := range n {
			d.running[i].Timing = infer.Timing{Start: d.now - 500, InputDone: d.now - 400, InferDone: d.now - 20, Done: d.now}
			d.step(&core.Event{Kind: core.InstanceFree, Ended: &d.running[i]})
		}
		d.running = append(d.running[:0], d.running[n:]...)
	}
}

func (d *driven) step(e *core.Event) {
	if d.log != nil {
		d.log.Event(d.now, e)
	}
	decisions := d.core.Step(d.now, e)
	if d.log != nil {
		d.log.Decided(decisions)
	}
	for i := range decisions {
		switch x := &decisions[i]; x.Kind {
		case core.Dispatch:
			d.running = append(d.running, infer.InstanceFree{
				Batch: x.Batch, Instance: x.Instance, Credits: 1, Executions: 1, BatchSize: x.A, Outcomes: make([]infer.Outcome, len(x.Members().Items)),
			})
		case core.Complete:
			d.spare = append(d.spare, x.Members().Items...)
		}
	}
}
