package codec

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// counted makes inputs whose buffers are counted while they live.
type counted struct{ alive atomic.Int32 }

func (c *counted) tensor(n int) infer.Tensor {
	c.alive.Add(1)
	b := tensor.Wrap(make([]byte, n), false, func(*tensor.Buffer) { c.alive.Add(-1) })
	return infer.Tensor{Name: "x", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(n)}, Data: tensor.InBuffer(b, 0, int64(n))}
}

func (c *counted) check(t *testing.T, want int32) {
	t.Helper()
	if n := c.alive.Load(); n != want {
		t.Errorf("%d buffers are alive, want %d", n, want)
	}
}

func TestAnEnvelopeHoldsItsMessagesInOrder(t *testing.T) {
	var c counted
	w := NewWriter(new(Spares))
	for i, n := range []int{10, lendFrom, 100_000, 0, 20} {
		r := &infer.Request{Work: infer.Work{Attempt: uint32(i)}, Inputs: []infer.Tensor{c.tensor(n), c.tensor(3)}}
		if err := w.Submit(r, now); err != nil {
			t.Fatal(err)
		}
		r.Release()
	}
	if w.Count() != 5 {
		t.Errorf("%d messages", w.Count())
	}
	c.check(t, 2) // those that are lent
	envelope := w.Take()
	var got nereidv1.GatewayEnvelope
	if err := proto.Unmarshal(envelope.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	for i, m := range got.GetMessages() {
		if m.GetSubmit().GetDescriptor_().GetWork().GetAttempt() != uint32(i) {
			t.Errorf("message %d is %v", i, m)
		}
	}
	envelope.Free()
	c.check(t, 0)
}

func TestAMessageThatCannotBeWrittenLeavesNothing(t *testing.T) {
	var c counted
	w := NewWriter(new(Spares))
	if err := w.Placed(infer.Work{Attempt: 1}, 1); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*infer.Request{
		"text":      {Inputs: []infer.Tensor{c.tensor(lendFrom)}, Tenant: "\xff"},
		"parameter": {Inputs: []infer.Tensor{c.tensor(lendFrom)}, Parameters: []infer.Parameter{{Value: uint8(1)}}},
		"deadline":  {Inputs: []infer.Tensor{c.tensor(lendFrom)}, Deadline: now - 1},
	} {
		err := w.Submit(r, now)
		want := errs.InvalidParameter
		if name == "deadline" {
			want = errs.DeadlineQueue
		}
		if errs.Of(err) != want {
			t.Errorf("%s: %v", name, err)
		}
		r.Release()
	}
	c.check(t, 0)
	if err := w.Placed(infer.Work{Attempt: 2}, 1); err != nil {
		t.Fatal(err)
	}
	var got nereidv1.SchedulerEnvelope
	if err := proto.Unmarshal(w.Take().Materialize(), &got); err != nil || len(got.GetMessages()) != 2 {
		t.Errorf("%d messages, %v", len(got.GetMessages()), err)
	}
}

func TestModelsMaySayAnything(t *testing.T) {
	w, r := NewWriter(new(Spares)), NewReader(tensor.NewPool(0))
	said := errs.Wrap(errs.ExecutionFailed, errors.New("\xff"), "broken: %s", "\xc0")
	if err := w.Response(SchedulerResponse, infer.Fail(infer.Work{}, said)); err != nil {
		t.Fatal(err)
	}
	err := r.Each(w.Take(), func(_ protowire.Number, b Body) error {
		response, _, err := r.Response(b)
		if response.Err.Error() != "broken: \uFFFD" {
			t.Errorf("the error reads %q", response.Err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnknownFieldsAndLateTimesAreTaken(t *testing.T) {
	reader := NewReader(tensor.NewPool(0))
	d := &nereidv1.Descriptor{BudgetNs: 1 << 63, TimeoutUs: 1 << 63}
	d.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 7))
	batch := &nereidv1.Batch{LatestStartNs: 1 << 63, Requests: []*nereidv1.BatchRequest{{Descriptor_: d, QueuedNs: 1 << 63}}}
	m := &nereidv1.WorkEnvelope{Messages: []*nereidv1.WorkMessage{{Message: &nereidv1.WorkMessage_Batch{Batch: batch}}}}
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "new"))
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	err = reader.Each(mem.BufferSlice{mem.SliceBuffer(data)}, func(_ protowire.Number, b Body) error {
		got, err := reader.Batch(b, now)
		if err != nil {
			return err
		}
		if r := got.Requests[0]; r.Deadline != mono.Time(1<<63-1) || r.Timeout <= 0 || got.LatestStart != mono.Time(1<<63-1) || got.Enqueued[0] != 1 {
			t.Errorf("deadline %d, timeout %v, latest start %d, enqueued %d", r.Deadline, r.Timeout, got.LatestStart, got.Enqueued[0])
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A batch of which some requests alone have a slot has none.
func TestABatchHasAllSlotsOrNone(t *testing.T) {
	for _, with := range [][]bool{{true, false}, {false, true}, {true, false, true}} {
		batch := new(nereidv1.Batch)
		for _, has := range with {
			r := &nereidv1.BatchRequest{Descriptor_: new(nereidv1.Descriptor)}
			if has {
				r.Slot = &nereidv1.Slot{Index: 1}
			}
			batch.Requests = append(batch.Requests, r)
		}
		data, err := proto.Marshal(&nereidv1.WorkEnvelope{Messages: []*nereidv1.WorkMessage{{Message: &nereidv1.WorkMessage_Batch{Batch: batch}}}})
		if err != nil {
			t.Fatal(err)
		}
		err = NewReader(tensor.NewPool(0)).Each(mem.BufferSlice{mem.SliceBuffer(data)}, func(_ protowire.Number, b Body) error {
			got, err := NewReader(tensor.NewPool(0)).Batch(b, now)
			if err == nil && (len(got.Requests) != len(with) || len(got.Slots) != 0) {
				t.Errorf("%v: %d requests and %d slots", with, len(got.Requests), len(got.Slots))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWhatNoPeerSaysEndsTheStream(t *testing.T) {
	submit := func(d *nereidv1.Descriptor) proto.Message {
		return &nereidv1.GatewayEnvelope{Messages: []*nereidv1.GatewayMessage{
			{Message: &nereidv1.GatewayMessage_Submit{Submit: &nereidv1.SubmitRequest{Descriptor_: d}}},
		}}
	}
	x := func(n int, shape ...int64) []*nereidv1.Tensor {
		ref := &nereidv1.TensorRef{Place: &nereidv1.TensorRef_Inline{Inline: make([]byte, n)}}
		return []*nereidv1.Tensor{{Name: "x", Datatype: nereidv1.Datatype_DATATYPE_INT32, Shape: shape, Ref: ref}}
	}
	for name, m := range map[string]proto.Message{
		"negative size":      submit(&nereidv1.Descriptor{BatchSize: -1}),
		"negative dimension": submit(&nereidv1.Descriptor{Inputs: x(4, -1)}),
		"more bytes":         submit(&nereidv1.Descriptor{Inputs: x(20_000, 4)}),
		"fewer bytes":        submit(&nereidv1.Descriptor{Inputs: x(4, 2)}),
		"huge shape":         submit(&nereidv1.Descriptor{Inputs: x(4, 1<<40, 1<<40)}),
		"unknown datatype":   submit(&nereidv1.Descriptor{Inputs: []*nereidv1.Tensor{{Datatype: 99, Shape: []int64{0}}}}),
		"negative offset":    submit(&nereidv1.Descriptor{Inputs: []*nereidv1.Tensor{{Datatype: 6, Shape: []int64{1}, Ref: &nereidv1.TensorRef{Place: &nereidv1.TensorRef_Arena{Arena: &nereidv1.ArenaSlot{Offset: 1 << 63, Length: 1}}}}}}),
		"too many outputs":   submit(&nereidv1.Descriptor{Outputs: strings.Split(strings.Repeat(" ", maxEntries+1), "")}),
		"no member":          &nereidv1.GatewayEnvelope{Messages: []*nereidv1.GatewayMessage{{}}},
		"cut off":            nil,
	} {
		data := []byte{0x0a, 5, 0x12}
		if m != nil {
			var err error
			if data, err = proto.Marshal(m); err != nil {
				t.Fatal(err)
			}
		}
		pool := tensor.NewPool(0)
		r := NewReader(pool)
		err := r.Each(mem.BufferSlice{mem.SliceBuffer(data)}, func(_ protowire.Number, b Body) error {
			_, err := r.Submit(b, now)
			return err
		})
		if errs.Of(err) != errs.PeerMalformed {
			t.Errorf("%s: %v", name, err)
		}
		if s := pool.Stats(); s.InUse != 0 {
			t.Errorf("%s: %d bytes are in use", name, s.InUse)
		}
	}
}

func TestMembersAreThoseOfTheContracts(t *testing.T) {
	for name, want := range map[string]map[string]protowire.Number{
		"GatewayMessage": {"hello": Hello, "submit": GatewaySubmit, "cancel": GatewayCancel, "cache_use": GatewayCacheUse, "ensemble_end": GatewayEnsembleEnd},
		"SchedulerMessage": {
			"hello": Hello, "refused": SchedulerRefused, "response": SchedulerResponse,
			"credit": SchedulerCredit, "placed": SchedulerPlaced, "drain": SchedulerDrain,
		},
		"WorkerMessage": {
			"hello": Hello, "grant": WorkerGrant, "instance_free": WorkerInstanceFree, "retire": WorkerRetire, "drain": WorkerDrain,
			"batch_returned": WorkerBatchReturned, "unit_done": WorkerUnitDone, "leave": WorkerLeave,
		},
		"WorkMessage": {"hello": Hello, "batch": WorkBatch, "cancel": WorkCancel, "retired": WorkRetired, "left": WorkLeft},
	} {
		fields := nereidv1.File_nereid_v1_schedule_proto.Messages().ByName(protoreflect.Name(name)).Fields()
		if fields.Len() != len(want) {
			t.Errorf("%s has %d members, want %d", name, fields.Len(), len(want))
		}
		for member, number := range want {
			if f := fields.ByName(protoreflect.Name(member)); f == nil || f.Number() != number {
				t.Errorf("%s: %s is %v, want %d", name, member, f, number)
			}
		}
	}
}
