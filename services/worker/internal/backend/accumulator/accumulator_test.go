package accumulator_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/accumulator"
	"github.com/nereid-serving/nereid/services/worker/internal/sequence"
)

// batch keeps the responses to its requests. What it does not have is not called.
type batch struct {
	sequence.Batch
	requests  []*infer.Request
	slots     []infer.Slot
	canceled  bool
	responses []*infer.Response
}

func (b *batch) Requests() []*infer.Request       { return b.requests }
func (b *batch) BatchSize() int64                 { return int64(len(b.requests)) }
func (b *batch) Slots() []infer.Slot              { return b.slots }
func (*batch) Pad(int64)                          {}
func (b *batch) Respond(i int, r *infer.Response) { b.responses[i] = r }
func (b *batch) Canceled(int) bool                { return b.canceled }
func (*batch) OnCancel(func())                    {}
func (*batch) OnCancelEach(func(int))             {}
func (*batch) InputDone()                         {}
func (*batch) InferDone()                         {}
func (*batch) Executed()                          {}
func (*batch) Done()                              {}

// add gives the batch a request with numbers; S and E are flags of its sequence.
func (b *batch) add(slot uint32, of infer.Sequence, flags string, numbers ...int32) *batch {
	of.Start, of.End = strings.Contains(flags, "S"), strings.Contains(flags, "E")
	var data []byte
	for _, n := range numbers {
		data = binary.LittleEndian.AppendUint32(data, uint32(n))
	}
	b.requests = append(b.requests, &infer.Request{Sequence: of, BatchSize: 1, Inputs: []infer.Tensor{
		{Name: "INPUT", Datatype: tensor.Int32, Shape: tensor.Shape{1, int64(len(numbers))}, Data: tensor.InHeap(data)},
	}})
	b.slots, b.responses = append(b.slots, infer.Slot{Index: slot, Sequence: of}), append(b.responses, nil)
	return b
}

// run executes a batch and says what its responses give.
func run(in backend.Instance, b *batch) (told []string) {
	in.Execute(b)
	for _, r := range b.responses {
		text := ""
		if r.Err != nil {
			text = string(errs.Of(r.Err)) + ": " + r.Err.Error()
		}
		for _, o := range r.Outputs {
			data, _ := o.Data.Bytes()
			var values []int32
			for chunk := range slices.Chunk(data, 4) {
				values = append(values, int32(binary.LittleEndian.Uint32(chunk)))
			}
			text += fmt.Sprintf("%s%v=%v", o.Name, o.Shape, values)
		}
		told = append(told, text)
		r.Release()
	}
	return told
}

func (b *batch) of(outputs ...infer.Output) *batch {
	for _, r := range b.requests {
		r.Outputs = outputs
	}
	return b
}

// config is that of the backend sequence.
func config() *modelconfig.Config {
	return &modelconfig.Config{
		Name: "m", MaxBatchSize: 4, Parameters: map[string]string{},
		Inputs:  []modelconfig.IO{{Name: "INPUT", Datatype: tensor.Int32, Dims: tensor.Shape{-1}}},
		Outputs: []modelconfig.IO{{Name: "OUTPUT", Datatype: tensor.Int32, Dims: tensor.Shape{-1}}},
		Sequences: &modelconfig.SequenceBatching{Slots: 4, MaxIdleMicros: 1e6, Controls: []modelconfig.SequenceControl{
			{Kind: modelconfig.ControlStart, Input: "START", Datatype: tensor.FP32, True: 1},
			{Kind: modelconfig.ControlReady, Input: "READY", Datatype: tensor.Int32, True: 1},
		}},
	}
}

// dynamic is that of the backend dyna_sequence.
func dynamic(id tensor.Datatype) *modelconfig.Config {
	c := config()
	c.Sequences.Oldest = true
	c.Sequences.Controls = append(c.Sequences.Controls,
		modelconfig.SequenceControl{Kind: modelconfig.ControlEnd, Input: "END", Datatype: tensor.Bool, True: 1},
		modelconfig.SequenceControl{Kind: modelconfig.ControlCorrelationID, Input: "CORRID", Datatype: id})
	return c
}

func load(t *testing.T, d backend.Driver, c *modelconfig.Config) (backend.Model, error) {
	t.Helper()
	b, err := d.Open(backend.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	return b.Load(t.Context(), backend.Version{Config: c.ForBackend()})
}

// open makes an instance as the worker does, which is given the controls.
func open(t *testing.T, d backend.Driver, c *modelconfig.Config) backend.Instance {
	t.Helper()
	m, err := load(t, d, c)
	if err != nil {
		t.Fatal(err)
	}
	in, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
	if err != nil {
		t.Fatal(err)
	}
	sequences, err := sequence.Prepare(backend.Version{Config: c}, sequence.Deps{Clock: mono.New(), Held: func(int64) {}})
	if err != nil {
		t.Fatal(err)
	}
	return sequences.Instance(in)
}

func expect(t *testing.T, in backend.Instance, b *batch, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, run(in, b)); d != "" {
		t.Error(d)
	}
}

func TestEachSlotHasItsSum(t *testing.T) {
	in := open(t, accumulator.Sequence(), config())
	one, two, three := infer.Sequence{ID: 1}, infer.Sequence{ID: 2}, infer.Sequence{ID: 3}
	expect(t, in, new(batch).add(0, one, "S", 1, 2).add(2, two, "S", 10), "OUTPUT[1,2]=[3 3]", "OUTPUT[1,1]=[10]")
	expect(t, in, new(batch).add(2, two, "", -4), "OUTPUT[1,1]=[6]") // beside a row that is not ready
	expect(t, in, new(batch).add(2, two, "E", 1).add(0, one, "", 5), "OUTPUT[1,1]=[7]", "OUTPUT[1,1]=[8]")
	expect(t, in, new(batch).add(2, three, "S", math.MaxInt32), "OUTPUT[1,1]=[2147483647]")
	expect(t, in, new(batch).add(2, three, "", 2), "OUTPUT[1,1]=[-2147483647]")
	expect(t, in, new(batch).add(0, one, "S").add(2, three, "", 0).of(infer.Output{Name: "none"}), "", "")
	expect(t, in, new(batch).add(0, one, "", 9), "OUTPUT[1,1]=[9]")
}

func TestEachCorrelationIDHasItsSum(t *testing.T) {
	in := open(t, accumulator.DynaSequence(), dynamic(tensor.Uint64))
	one, two := infer.Sequence{ID: 1}, infer.Sequence{ID: 1<<32 + 100}
	expect(t, in, new(batch).add(3, one, "S", 1, 2).add(0, two, "S", 10), "OUTPUT[1,2]=[3 3]", "OUTPUT[1,1]=[10]")
	expect(t, in, new(batch).add(0, two, "", 1).add(3, one, "", 1), "OUTPUT[1,1]=[11]", "OUTPUT[1,1]=[4]")
	expect(t, in, new(batch).add(0, two, "E", 1).add(3, one, "E", 1), "OUTPUT[1,1]=[112]", "OUTPUT[1,1]=[6]")
	expect(t, in, new(batch).add(1, one, "SE", 1), "OUTPUT[1,1]=[2]")
}

func TestCorrelationIDsOfText(t *testing.T) {
	in := open(t, accumulator.DynaSequence(), dynamic(tensor.Bytes))
	expect(t, in, new(batch).add(0, infer.Sequence{Key: "100"}, "S", 5), "OUTPUT[1,1]=[5]")
	expect(t, in, new(batch).add(0, infer.Sequence{Key: "100"}, "E", 5), "OUTPUT[1,1]=[110]")
	expect(t, in, new(batch).add(0, infer.Sequence{Key: "x"}, "S", 5),
		`tensor_data_invalid: the correlation ID is "x": the backend dyna_sequence adds it to the sum, give a number`)
}

func TestWhatFailsIsNotAdded(t *testing.T) {
	in := open(t, accumulator.Sequence(), config())
	one := infer.Sequence{ID: 1}
	expect(t, in, new(batch).add(0, one, "S", 1), "OUTPUT[1,1]=[1]")
	canceled := new(batch).add(0, one, "", 10)
	canceled.canceled = true
	expect(t, in, canceled, "cancelled: cancelled")
	several := new(batch).add(0, one, "", 10)
	several.requests[0].BatchSize = 2
	expect(t, in, several, "batch_size_exceeded: unable to execute more than one timestep at a time")
	expect(t, in, new(batch).add(0, one, "", 2), "OUTPUT[1,1]=[3]")
}

// A sequence that ends without END leaves its sum behind until it is idle for too long.
func TestSumsOfSequencesThatNeverEndAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := load(t, accumulator.DynaSequence(), dynamic(tensor.Uint64))
		if err != nil {
			t.Fatal(err)
		}
		in, err := m.NewInstance(t.Context(), backend.InstanceSpec{})
		if err != nil {
			t.Fatal(err)
		}
		held := in.(interface{ Sums() int })
		wrapped, err := sequence.Prepare(backend.Version{Config: dynamic(tensor.Uint64)}, sequence.Deps{Clock: mono.New(), Held: func(int64) {}})
		if err != nil {
			t.Fatal(err)
		}
		all := wrapped.Instance(in)
		for n := range uint64(100) {
			expect(t, all, new(batch).add(0, infer.Sequence{ID: n + 1}, "S", 1), "OUTPUT[1,1]=[1]")
		}
		if held.Sums() != 100 {
			t.Errorf("%d sums at once, want 100", held.Sums())
		}
		<-time.After(time.Hour)
		expect(t, all, new(batch).add(0, infer.Sequence{ID: 1000}, "S", 1), "OUTPUT[1,1]=[1]")
		if held.Sums() != 1 {
			t.Errorf("%d sums are left of idle sequences, want that of the last", held.Sums())
		}
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, began := config(), time.Now()
		c.Parameters["execute_delay_ms"] = "250"
		expect(t, open(t, accumulator.Sequence(), c), new(batch).add(0, infer.Sequence{ID: 1}, "S", 1), "OUTPUT[1,1]=[1]")
		if took := time.Since(began); took != 250*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestLoadRefuses(t *testing.T) {
	const (
		two  = "'START' and 'READY' must be configured as the control inputs of sequence_batching"
		four = "'START', 'END', 'READY' and 'CORRID' must be configured as the control inputs of sequence_batching"
	)
	for name, tt := range map[string]struct {
		driver backend.Driver
		config *modelconfig.Config
		edit   func(*modelconfig.Config)
		want   string
	}{
		"no sequences":     {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Sequences = nil }, two},
		"too few controls": {accumulator.DynaSequence(), config(), func(*modelconfig.Config) {}, four},
		"a control's name": {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Sequences.Controls[0].Input = "BEGIN" }, two},
		"a control's kind": {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Sequences.Controls[0].Kind = modelconfig.ControlEnd }, two},
		"a slot for none":  {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Sequences.Oldest = true }, "use direct, or the backend dyna_sequence"},
		"small IDs":        {accumulator.DynaSequence(), dynamic(tensor.Int32), func(*modelconfig.Config) {}, "model CORRID control input must have TYPE_UINT64 or TYPE_STRING data-type"},
		"no input":         {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Inputs = nil }, "model must have one input 'INPUT' with vector shape, any length"},
		"a matrix":         {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Outputs[0].Dims = tensor.Shape{1, 1} }, "model must have one output 'OUTPUT' with vector shape, any length"},
		"floats":           {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Inputs[0].Datatype = tensor.FP32 }, "model input must have TYPE_INT32 data-type"},
		"an input's name":  {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Inputs[0].Name = "x" }, "model input must be named 'INPUT'"},
		"another shape":    {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Outputs[0].Dims = tensor.Shape{2} }, "model must have output 'OUTPUT' with shape matching 'INPUT'"},
		"no delay":         {accumulator.Sequence(), config(), func(c *modelconfig.Config) { c.Parameters["execute_delay_ms"] = "x" }, `parameter execute_delay_ms is "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			tt.edit(tt.config)
			if _, err := load(t, tt.driver, tt.config); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v, want load_failed with %q", err, tt.want)
			}
		})
	}
}
