package sequence_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/echo"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

// batch keeps the responses that reach its requests.
type batch struct {
	requests  []*infer.Request
	slots     []infer.Slot
	padded    int64
	responses []*infer.Response
	canceled  bool
	again     []int
	free      int
	done      int
}

func (b *batch) Requests() []*infer.Request       { return b.requests }
func (b *batch) Slots() []infer.Slot              { return b.slots }
func (b *batch) Pad(rows int64)                   { b.padded += rows }
func (b *batch) BatchSize() int64                 { return int64(len(b.requests)) }
func (b *batch) Respond(i int, r *infer.Response) { b.responses[i] = r }
func (b *batch) Canceled(int) bool                { return b.canceled }
func (b *batch) OnCancel(func())                  {}
func (b *batch) OnCancelEach(func(int))           {}
func (b *batch) GiveBack(err error)               { panic(err) }
func (b *batch) InputDone()                       {}
func (b *batch) InferDone()                       {}
func (b *batch) Executed()                        {}
func (b *batch) Free()                            { b.free++ }
func (b *batch) Again(i int) bool                 { b.again = append(b.again, i); return true }
func (b *batch) Done()                            { b.done++ }
func (b *batch) Room(int) <-chan struct{}         { return nil }
func (b *batch) Call(int, *infer.Call, func(*infer.Response)) func() {
	return nil
}

func (b *batch) add(r *infer.Request, s infer.Slot) *batch {
	b.requests, b.slots, b.responses = append(b.requests, r), append(b.slots, s), append(b.responses, nil)
	return b
}

// place is a slot, with flags S and E of a sequence that is named by a number.
func place(index uint32, id uint64, flags string) infer.Slot {
	return infer.Slot{Index: index, Sequence: infer.Sequence{ID: id, Start: strings.Contains(flags, "S"), End: strings.Contains(flags, "E")}}
}

// request has the input x, as a row where the model batches.
func request(c *modelconfig.Config, x ...float32) *infer.Request {
	var data []byte
	for _, v := range x {
		data = binary.NativeEndian.AppendUint32(data, math.Float32bits(v))
	}
	shape := tensor.Shape{int64(len(x))}
	if c.Batches() {
		shape = shape.Prepend(1)
	}
	return &infer.Request{
		Sequence: infer.Sequence{ID: 1}, BatchSize: 1,
		Inputs: []infer.Tensor{{Name: c.Inputs[0].Name, Datatype: tensor.FP32, Shape: shape, Data: tensor.InHeap(data)}},
	}
}

// write shows tensors with their values.
func write(t *testing.T, list []infer.Tensor) []string {
	t.Helper()
	var all []string
	for _, x := range list {
		data, err := x.Data.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var values []any
		for len(data) > 0 {
			switch n := x.Datatype.Size(); {
			case x.Datatype == tensor.Bytes:
				element, rest, err := tensor.CutBytes(data)
				if err != nil {
					t.Fatal(err)
				}
				values, data = append(values, string(element)), rest
				continue
			case x.Datatype == tensor.FP32:
				values = append(values, math.Float32frombits(binary.NativeEndian.Uint32(data)))
			case x.Datatype == tensor.Int32:
				values = append(values, int32(binary.NativeEndian.Uint32(data)))
			case n == 8:
				values = append(values, binary.NativeEndian.Uint64(data))
			case n == 4:
				values = append(values, binary.NativeEndian.Uint32(data))
			default:
				values = append(values, data[0])
			}
			data = data[x.Datatype.Size():]
		}
		all = append(all, fmt.Sprintf("%s %s%s %v", x.Name, x.Datatype, x.Shape, values))
	}
	return all
}

// outputs shows a response and releases it.
func outputs(t *testing.T, r *infer.Response) []string {
	t.Helper()
	if r == nil {
		t.Fatal("no response")
	}
	if r.Err != nil {
		return []string{string(errs.Of(r.Err)) + ": " + r.Err.Error()}
	}
	defer r.Release()
	return write(t, r.Outputs)
}

// prepare makes what instances share, and counts what their states take.
func prepare(t *testing.T, v backend.Version, pool *tensor.Pool) (*sequence.Model, *atomic.Int64) {
	t.Helper()
	held := new(atomic.Int64)
	m, err := sequence.Prepare(v, sequence.Deps{Pool: pool, Clock: mono.New(), Held: func(n int64) { held.Add(n) }})
	if err != nil {
		t.Fatal(err)
	}
	return m, held
}

// controlled is a model that gives its controls as outputs.
func controlled(maxBatch int64, controls ...modelconfig.SequenceControl) *modelconfig.Config {
	c := &modelconfig.Config{
		Name: "m", MaxBatchSize: maxBatch, Inputs: []modelconfig.IO{{Name: "x", Datatype: tensor.FP32, Dims: tensor.Shape{1}}},
		Sequences: &modelconfig.SequenceBatching{Slots: int(max(maxBatch, 1)), MaxIdleMicros: math.MaxUint64, Controls: controls},
	}
	for _, in := range c.ForBackend().Inputs {
		in.Name = "of " + in.Name
		c.Outputs = append(c.Outputs, in)
	}
	return c
}

func openEcho(t *testing.T, c *modelconfig.Config) backend.Instance {
	t.Helper()
	model, err := new(echo.Backend).Load(t.Context(), backend.Version{Config: c.ForBackend()})
	if err != nil {
		t.Fatal(err)
	}
	in, err := model.NewInstance(t.Context(), backend.InstanceSpec{Kind: modelconfig.KindCPU})
	if err != nil {
		t.Fatal(err)
	}
	m, _ := prepare(t, backend.Version{Config: c}, nil)
	return m.Instance(in)
}

func TestControlsSayWhereARequestIs(t *testing.T) {
	boolean := func(d tensor.Datatype, no, yes float64) []modelconfig.SequenceControl {
		return []modelconfig.SequenceControl{
			{Kind: modelconfig.ControlStart, Input: "start", Datatype: d, False: no, True: yes},
			{Kind: modelconfig.ControlEnd, Input: "end", Datatype: d, False: no, True: yes},
			{Kind: modelconfig.ControlReady, Input: "ready", Datatype: d, False: no, True: yes},
		}
	}
	id := func(d tensor.Datatype) []modelconfig.SequenceControl {
		return []modelconfig.SequenceControl{{Kind: modelconfig.ControlCorrelationID, Input: "id", Datatype: d}}
	}
	const large = 1<<32 + 7
	named := infer.Slot{Sequence: infer.Sequence{Key: "chat", Start: true}}
	tests := map[string]struct {
		maxBatch int64
		controls []modelconfig.SequenceControl
		place    infer.Slot
		want     []string
	}{
		"start":            {4, boolean(tensor.Int32, -3, 4), place(0, 1, "S"), []string{"of start INT32[1,1] [4]", "of end INT32[1,1] [-3]", "of ready INT32[1,1] [4]"}},
		"start and end":    {4, boolean(tensor.FP32, 0.5, 1.5), place(0, 1, "SE"), []string{"of start FP32[1,1] [1.5]", "of end FP32[1,1] [1.5]", "of ready FP32[1,1] [1.5]"}},
		"without batches":  {0, boolean(tensor.Bool, 0, 1), place(0, 1, "S"), []string{"of start BOOL[1] [1]", "of end BOOL[1] [0]", "of ready BOOL[1] [1]"}},
		"reversed":         {4, boolean(tensor.Bool, 1, 0), place(0, 1, "S"), []string{"of start BOOL[1,1] [0]", "of end BOOL[1,1] [1]", "of ready BOOL[1,1] [0]"}},
		"UINT64":           {4, id(tensor.Uint64), place(0, large, "S"), []string{"of id UINT64[1,1] [4294967303]"}},
		"INT64":            {4, id(tensor.Int64), place(0, large, "S"), []string{"of id INT64[1,1] [4294967303]"}},
		"UINT32, cut":      {4, id(tensor.Uint32), place(0, large, "S"), []string{"of id UINT32[1,1] [7]"}},
		"INT32, cut":       {4, id(tensor.Int32), place(0, 1<<32-2, "S"), []string{"of id INT32[1,1] [-2]"}},
		"STRING":           {4, id(tensor.Bytes), named, []string{"of id BYTES[1,1] [chat]"}},
		"STRING, a number": {4, id(tensor.Bytes), place(0, 12, "S"), []string{"of id BYTES[1,1] [12]"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := controlled(tt.maxBatch, tt.controls...)
			b := new(batch).add(request(c, 5), tt.place)
			openEcho(t, c).Execute(b)
			if diff := cmp.Diff(tt.want, outputs(t, b.responses[0])[1:]); diff != "" {
				t.Error(diff)
			}
			if b.done != 1 {
				t.Errorf("the batch ended %d times", b.done)
			}
		})
	}
}

// engine is a backend's instance made of a function.
type engine func(backend.Batch)

func (engine) Credits() int              { return 1 }
func (e engine) Execute(b backend.Batch) { e(b) }
func (engine) Close() error              { return nil }

// Each slot has its row. Those without a request are empty, and nobody hears of
// them.
func TestSlotsWithoutARequestHaveEmptyRows(t *testing.T) {
	c := controlled(4,
		modelconfig.SequenceControl{Kind: modelconfig.ControlReady, Input: "ready", Datatype: tensor.Int32, False: 8, True: 9},
		modelconfig.SequenceControl{Kind: modelconfig.ControlStart, Input: "start", Datatype: tensor.Bool, True: 1},
		modelconfig.SequenceControl{Kind: modelconfig.ControlCorrelationID, Input: "id", Datatype: tensor.Uint32},
		modelconfig.SequenceControl{Kind: modelconfig.ControlEnd, Input: "end", Datatype: tensor.Bool, True: 1},
	)
	c.Inputs = append(c.Inputs, modelconfig.IO{Name: "words", Datatype: tensor.Bytes, Dims: tensor.Shape{-1}})
	var got [][]string
	freed, busy := 0, 2
	m, _ := prepare(t, backend.Version{Config: c}, nil)
	in := m.Instance(engine(func(b backend.Batch) {
		if b.BatchSize() != 3 {
			t.Errorf("batch size %d", b.BatchSize())
		}
		for i, r := range b.Requests() {
			got = append(got, write(t, r.Inputs))
			if b.Canceled(i) != (i != busy) {
				t.Errorf("row %d is canceled: %v", i, b.Canceled(i))
			}
			b.Respond(i, &infer.Response{Final: true, Outputs: []infer.Tensor{{
				Name: "y", Data: tensor.InBuffer(tensor.Wrap([]byte{1}, false, func(*tensor.Buffer) { freed++ }), 0, 1),
			}}})
		}
		b.Done()
	}))
	r := request(c, 5)
	r.Inputs = append(r.Inputs, infer.Tensor{
		Name: "words", Datatype: tensor.Bytes, Shape: tensor.Shape{1, 2}, Data: tensor.InHeap(tensor.AppendBytes(tensor.AppendBytes(nil, "a"), "long")),
	})
	in.Execute(new(batch).add(request(c, 5), place(2, 9, "S"))) // which lives, and has no request next
	got, freed, busy = nil, 0, 1
	b := new(batch).add(r, place(1, 7, "S"))
	in.Execute(b)
	empty := []string{"x FP32[1,1] [0]", "words BYTES[1,2] [ ]", "ready INT32[1,1] [8]", "start BOOL[1,1] [0]", "id UINT32[1,1] [0]", "end BOOL[1,1] [0]"}
	want := [][]string{
		empty, {"x FP32[1,1] [5]", "words BYTES[1,2] [a long]", "ready INT32[1,1] [9]", "start BOOL[1,1] [1]", "id UINT32[1,1] [7]", "end BOOL[1,1] [0]"}, empty,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if b.responses[0] == nil || len(b.responses[0].Outputs) != 1 || freed != 2 || b.done != 1 || b.padded != 2 {
		t.Errorf("response %+v, %d outputs of empty rows released, %d ends", b.responses[0], freed, b.done)
	}
}

func TestRequestsWithoutAPlaceAreRefused(t *testing.T) {
	c := controlled(4)
	tests := map[string]struct {
		slots []infer.Slot
		want  string
	}{
		"no slots":          {nil, "bug: the batch does not say where its requests are"},
		"a slot twice":      {[]infer.Slot{place(1, 1, "S"), place(1, 2, "S")}, "bug: the batch does not say where its requests are"},
		"a slot beyond all": {[]infer.Slot{place(0, 1, "S"), place(4, 2, "S")}, "bug: the batch does not say where its requests are"},
		"another sequence":  {[]infer.Slot{place(0, 1, ""), place(1, 2, "")}, "sequence_lost: the instance does not have the state of sequence 1 of model 'm'"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, _ := prepare(t, backend.Version{Ref: infer.ModelRef{Name: "m"}, Config: c}, nil)
			in := m.Instance(engine(func(backend.Batch) { t.Error("it ran") }))
			b := &batch{requests: []*infer.Request{request(c, 1), request(c, 2)}, slots: tt.slots, responses: make([]*infer.Response, 2)}
			in.Execute(b)
			if got := outputs(t, b.responses[0])[0]; got != tt.want || b.responses[1] == nil || b.done != 1 {
				t.Errorf("%s, and %v", got, b.responses[1])
			}
		})
	}
}

// Rows end with the highest slot in use: a sequence that was idle for too long has
// ended.
func TestIdleSequencesHaveNoRows(t *testing.T) {
	c := controlled(4)
	c.Sequences.MaxIdleMicros = 0
	in := openEcho(t, c)
	in.Execute(new(batch).add(request(c, 1), place(3, 1, "S")))
	b := new(batch).add(request(c, 1), place(1, 2, "S"))
	for b.padded == 0 || b.padded == 3 { // of a clock that stands still
		b = new(batch).add(request(c, 1), place(1, 2, "S"))
		in.Execute(b)
	}
	if b.padded != 1 {
		t.Errorf("%d empty rows", b.padded)
	}
	c.Sequences.Oldest = true
	b = new(batch).add(request(c, 1), place(1, 2, "S"))
	openEcho(t, c).Execute(b)
	if b.padded != 0 {
		t.Errorf("%d empty rows of oldest", b.padded)
	}
}

// What has no place does not keep the others from running.
func TestOneLostSequenceDoesNotEndTheOthers(t *testing.T) {
	c := controlled(4)
	b := new(batch).add(request(c, 1), place(0, 1, "")).add(request(c, 2), place(1, 2, "S"))
	openEcho(t, c).Execute(b)
	if got := outputs(t, b.responses[0])[0]; !strings.HasPrefix(got, "sequence_lost") {
		t.Error(got)
	}
	if got := outputs(t, b.responses[1]); got[0] != "of x FP32[1,1] [2]" {
		t.Error(got)
	}
}

// clock stands still until it is set.
type clock struct{ now mono.Time }

func (c *clock) Now() mono.Time { return c.now }

func TestSequencesThatLiveAreHeld(t *testing.T) {
	c := controlled(4)
	c.Sequences.MaxIdleMicros = 5_000_000
	at := &clock{now: 1}
	m, err := sequence.Prepare(backend.Version{Config: c}, sequence.Deps{Clock: at, Held: func(int64) {}})
	if err != nil {
		t.Fatal(err)
	}
	in := m.Instance(engine(func(b backend.Batch) {
		for i := range b.Requests() {
			b.Respond(i, &infer.Response{Final: true})
		}
		b.Done()
	}))
	held := func(want ...infer.HeldSequence) {
		t.Helper()
		if diff := cmp.Diff(want, in.Sequences()); diff != "" {
			t.Error(diff)
		}
	}
	chat := infer.Slot{Index: 1, Sequence: infer.Sequence{Key: "chat", Start: true}}
	in.Execute(new(batch).add(request(c, 1), chat).add(request(c, 1), place(3, 7, "S")).add(request(c, 1), place(0, 8, "SE")))
	held(infer.HeldSequence{Sequence: infer.Sequence{Key: "chat"}, BatchSlot: 1, Idle: 5 * time.Second},
		infer.HeldSequence{Sequence: infer.Sequence{ID: 7}, BatchSlot: 3, Idle: 5 * time.Second})
	in.Execute(new(batch).add(request(c, 1), place(3, 7, "E")))
	at.now = at.now.Add(15 * time.Second) // its idle time, and what a takeover may take
	held(infer.HeldSequence{Sequence: infer.Sequence{Key: "chat"}, BatchSlot: 1, Idle: 5 * time.Second})
	at.now = at.now.Add(1)
	held()
}

// A request that runs for long is no idle time.
func TestSequencesThatRunAreHeld(t *testing.T) {
	c := controlled(4)
	c.Sequences.MaxIdleMicros = 5_000_000
	at := &clock{now: 1}
	m, err := sequence.Prepare(backend.Version{Config: c}, sequence.Deps{Clock: at, Held: func(int64) {}})
	if err != nil {
		t.Fatal(err)
	}
	var in *sequence.Instance
	want := []infer.HeldSequence{{Sequence: infer.Sequence{ID: 7}, BatchSlot: 3, Idle: 5 * time.Second}}
	check := func() {
		t.Helper()
		if diff := cmp.Diff(want, in.Sequences()); diff != "" {
			t.Error(diff)
		}
	}
	in = m.Instance(engine(func(b backend.Batch) {
		at.now = at.now.Add(time.Hour)
		check()
		for i := range b.Requests() {
			b.Respond(i, &infer.Response{Final: true})
		}
		b.Done()
	}))
	for _, flags := range []string{"S", ""} {
		b := new(batch).add(request(c, 1), place(3, 7, flags))
		in.Execute(b)
		if b.responses[0] == nil || b.responses[0].Err != nil {
			t.Fatalf("response %+v", b.responses[0])
		}
		at.now = at.now.Add(5 * time.Second)
		check()
	}
	want = nil
	at.now = at.now.Add(11 * time.Second)
	check()
}

// A request that is to run again has its next iteration on the states that have come,
// and keeps its slot although it ends the sequence. A hello names it meanwhile.
func TestSequenceGoesOnWithTheNextIteration(t *testing.T) {
	c := stateful(4)
	c.Sequences.Iterative = true
	state := func(x float32) []infer.Tensor {
		return []infer.Tensor{{Name: "STATE_OUT", Datatype: tensor.FP32, Shape: tensor.Shape{1, 2}, Data: request(c, x, x).Inputs[0].Data}}
	}
	m, held := prepare(t, backend.Version{Config: c}, nil)
	var got []string
	last := false
	in := m.Instance(engine(func(b backend.Batch) {
		got = write(t, b.Requests()[0].Inputs[1:])
		b.Respond(0, &infer.Response{Outputs: state(7)})
		if last {
			b.Respond(0, &infer.Response{Final: true})
		} else if !b.Again(0) {
			t.Error("it does not run again")
		}
		b.Done()
	}))
	r := request(c, 1, 1)
	r.Work = infer.Work{Request: infer.RequestID{Origin: 3, Number: 4}}
	b := new(batch).add(r, place(0, 5, "SE"))
	in.Execute(b)
	if diff := cmp.Diff([]int{0}, b.again); diff != "" {
		t.Error(diff)
	}
	want := []infer.HeldSequence{{Sequence: infer.Sequence{ID: 5}, Idle: time.Minute, Request: r.Work}}
	if diff := cmp.Diff(want, in.Sequences()); diff != "" {
		t.Error(diff)
	}
	last = true
	in.Execute(new(batch).add(r, place(0, 5, "")))
	if diff := cmp.Diff([]string{"STATE_IN FP32[1,2] [7 7]"}, got); diff != "" {
		t.Error(diff)
	}
	if list, n := in.Sequences(), held.Load(); len(list) != 0 || n != 0 {
		t.Errorf("after the end %+v is held, and states of %d bytes", list, n)
	}
}
