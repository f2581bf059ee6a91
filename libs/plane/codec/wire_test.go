package codec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// sight makes values comparable: tensors by their bytes, errors by what their
// callers see of them, no lists as empty ones, numbers that are none as such.
func sight() cmp.Options {
	return cmp.Options{
		cmp.Transformer("ref", func(r tensor.Ref) string {
			if r.Place == tensor.Local {
				b, err := r.Bytes()
				return fmt.Sprint(string(b), err)
			}
			return fmt.Sprint(r.Place, r.Holder, r.Region, r.Slot, r.Generation, r.Offset, r.Length)
		}),
		cmp.Transformer("float", math.Float64bits),
		cmp.FilterValues(func(_, _ error) bool { return true }, cmp.Comparer(sameError)),
		cmp.FilterValues(emptyLists, cmp.Comparer(func(any, any) bool { return true })),
	}
}

func emptyLists(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	return x.IsValid() && y.IsValid() && x.Kind() == reflect.Slice && y.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0
}

func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	x, y := errs.From(a), errs.From(b)
	return x.Error() == y.Error() && x.Reason == y.Reason && x.Msg == y.Msg && x.Model == y.Model && x.RetryAfter == y.RetryAfter && x.Op == y.Op
}

// split cuts an envelope into buffers as a network might.
func split(data []byte, seed uint64) mem.BufferSlice {
	if seed == 0 {
		return mem.BufferSlice{mem.SliceBuffer(data)}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var s mem.BufferSlice
	for len(data) > 0 {
		n := min(random.IntN(400)+1, len(data))
		s = append(s, mem.SliceBuffer(data[:n]))
		data = data[n:]
	}
	return s
}

// kind is a message that is written and read by hand.
type kind struct {
	name   string
	member protowire.Number
	// envelope is of the stream that the message is for.
	envelope func() proto.Message
	draw     func(*rapid.T) any
	write    func(*Writer, any) error
	// message puts the value into an envelope of the generated type.
	message func(any) proto.Message
	read    func(*Reader, Body) (any, error)
	// value takes it out again.
	value func(proto.Message) any
}

type returnable struct {
	Response *infer.Response
	Returned bool
}

type refusal struct {
	Work infer.Work
	Err  error
}

type placed struct {
	Work   infer.Work
	Worker uint64
}

type cancelled struct {
	Batch infer.BatchID
	ID    infer.RequestID
}

func kinds() []kind {
	gateway := func(m *nereidv1.GatewayMessage) proto.Message {
		return &nereidv1.GatewayEnvelope{Messages: []*nereidv1.GatewayMessage{m}}
	}
	scheduler := func(m *nereidv1.SchedulerMessage) proto.Message {
		return &nereidv1.SchedulerEnvelope{Messages: []*nereidv1.SchedulerMessage{m}}
	}
	toWorker := func(m *nereidv1.WorkMessage) proto.Message {
		return &nereidv1.WorkEnvelope{Messages: []*nereidv1.WorkMessage{m}}
	}
	fromScheduler := func(m proto.Message) *nereidv1.SchedulerMessage {
		return m.(*nereidv1.SchedulerEnvelope).GetMessages()[0]
	}
	return slices.Concat(callKinds(), controlKinds(), []kind{
		{
			"submit", GatewaySubmit, func() proto.Message { return new(nereidv1.GatewayEnvelope) },
			func(t *rapid.T) any { return drawRequest(t) },
			func(w *Writer, v any) error { return w.Submit(v.(*infer.Request), now) },
			func(v any) proto.Message {
				d := descriptorMessage(v.(*infer.Request), now)
				return gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Submit{Submit: &nereidv1.SubmitRequest{Descriptor_: d}}})
			},
			func(r *Reader, b Body) (any, error) { return r.Submit(b, now) },
			func(m proto.Message) any {
				return requestOf(m.(*nereidv1.GatewayEnvelope).GetMessages()[0].GetSubmit().GetDescriptor_(), now)
			},
		},
		{
			"cancel", GatewayCancel, func() proto.Message { return new(nereidv1.GatewayEnvelope) },
			func(t *rapid.T) any { return drawWork(t).Request },
			func(w *Writer, v any) error { return w.Cancel(v.(infer.RequestID)) },
			func(v any) proto.Message {
				c := &nereidv1.CancelRequest{Work: work(infer.Work{Request: v.(infer.RequestID)})}
				return gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Cancel{Cancel: c}})
			},
			func(r *Reader, b Body) (any, error) { return r.Cancel(b) },
			func(m proto.Message) any {
				return workOf(m.(*nereidv1.GatewayEnvelope).GetMessages()[0].GetCancel().GetWork()).Request
			},
		},
		{
			"cache use", GatewayCacheUse, func() proto.Message { return new(nereidv1.GatewayEnvelope) },
			func(t *rapid.T) any {
				return infer.CacheUse{Model: drawRequest(t).Model, Hit: rapid.Bool().Draw(t, "hit"), Time: time.Duration(rapid.Int64Min(0).Draw(t, "time"))}
			},
			func(w *Writer, v any) error { u := v.(infer.CacheUse); return w.CacheUse(&u) },
			func(v any) proto.Message {
				u := v.(infer.CacheUse)
				m := &nereidv1.CacheUse{Model: descriptorMessage(&infer.Request{Model: u.Model}, now).GetModel(), Hit: u.Hit, TimeNs: uint64(u.Time)}
				return gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_CacheUse{CacheUse: m}})
			},
			func(r *Reader, b Body) (any, error) { return r.CacheUse(b) },
			func(m proto.Message) any {
				u := m.(*nereidv1.GatewayEnvelope).GetMessages()[0].GetCacheUse()
				return infer.CacheUse{Model: requestOf(&nereidv1.Descriptor{Model: u.GetModel()}, now).Model, Hit: u.GetHit(), Time: time.Duration(u.GetTimeNs())}
			},
		},
		{
			"ensemble end", GatewayEnsembleEnd, func() proto.Message { return new(nereidv1.GatewayEnvelope) },
			func(t *rapid.T) any {
				return infer.EnsembleEnd{
					Model: drawRequest(t).Model, Failed: rapid.Bool().Draw(t, "failed"), Time: time.Duration(rapid.Int64Min(0).Draw(t, "time")),
					BatchSize: rapid.Int64Min(0).Draw(t, "rows"), Input: time.Duration(rapid.Int64Min(0).Draw(t, "input")),
					Infer: time.Duration(rapid.Int64Min(0).Draw(t, "infer")), Output: time.Duration(rapid.Int64Min(0).Draw(t, "output")),
				}
			},
			func(w *Writer, v any) error { e := v.(infer.EnsembleEnd); return w.EnsembleEnd(&e) },
			func(v any) proto.Message {
				e := v.(infer.EnsembleEnd)
				m := &nereidv1.EnsembleEnd{
					Model: model(e.Model), Failed: e.Failed, TimeNs: uint64(e.Time), BatchSize: uint64(e.BatchSize),
					InputNs: uint64(e.Input), InferNs: uint64(e.Infer), OutputNs: uint64(e.Output),
				}
				return gateway(&nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_EnsembleEnd{EnsembleEnd: m}})
			},
			func(r *Reader, b Body) (any, error) { return r.EnsembleEnd(b) },
			func(m proto.Message) any {
				e := m.(*nereidv1.GatewayEnvelope).GetMessages()[0].GetEnsembleEnd()
				return infer.EnsembleEnd{
					Model: modelOf(e.GetModel()), Failed: e.GetFailed(), Time: time.Duration(e.GetTimeNs()), BatchSize: int64(e.GetBatchSize()),
					Input: time.Duration(e.GetInputNs()), Infer: time.Duration(e.GetInferNs()), Output: time.Duration(e.GetOutputNs()),
				}
			},
		},
		{
			"refused", SchedulerRefused, func() proto.Message { return new(nereidv1.SchedulerEnvelope) },
			func(t *rapid.T) any { return refusal{drawWork(t), drawError(t)} },
			func(w *Writer, v any) error { return w.Refused(v.(refusal).Work, v.(refusal).Err) },
			func(v any) proto.Message {
				r := &nereidv1.Refused{Work: work(v.(refusal).Work), Error: Error(v.(refusal).Err)}
				return scheduler(&nereidv1.SchedulerMessage{Message: &nereidv1.SchedulerMessage_Refused{Refused: r}})
			},
			func(r *Reader, b Body) (any, error) {
				w, e, err := r.Refused(b)
				return refusal{w, e}, err
			},
			func(m proto.Message) any {
				r := fromScheduler(m).GetRefused()
				return refusal{workOf(r.GetWork()), ErrorOf(r.GetError())}
			},
		},
		{
			"response", SchedulerResponse, func() proto.Message { return new(nereidv1.SchedulerEnvelope) },
			func(t *rapid.T) any { return returnable{drawResponse(t), rapid.Bool().Draw(t, "returned")} },
			func(w *Writer, v any) error {
				r := *v.(returnable).Response
				if v.(returnable).Returned {
					r.Returned = new(infer.Request)
				}
				return w.Response(SchedulerResponse, &r)
			},
			func(v any) proto.Message {
				m, _ := responseMessage(v.(returnable).Response)
				m.Returned = v.(returnable).Returned
				return scheduler(&nereidv1.SchedulerMessage{Message: &nereidv1.SchedulerMessage_Response{Response: m}})
			},
			func(r *Reader, b Body) (any, error) {
				response, returned, err := r.Response(b)
				return returnable{response, returned}, err
			},
			func(m proto.Message) any {
				r, returned := responseOf(fromScheduler(m).GetResponse())
				if r.Err != nil {
					r.Final, r.Outputs = true, nil
				}
				return returnable{r, returned}
			},
		},
		{
			"credit", SchedulerCredit, func() proto.Message { return new(nereidv1.SchedulerEnvelope) },
			func(t *rapid.T) any {
				return Credit{rapid.Uint32().Draw(t, "messages"), rapid.Uint64().Draw(t, "bytes")}
			},
			func(w *Writer, v any) error { return w.Credit(SchedulerCredit, v.(Credit)) },
			func(v any) proto.Message {
				c := &nereidv1.Credit{Messages: v.(Credit).Messages, Bytes: v.(Credit).Bytes}
				return scheduler(&nereidv1.SchedulerMessage{Message: &nereidv1.SchedulerMessage_Credit{Credit: c}})
			},
			func(r *Reader, b Body) (any, error) { return r.Credit(b) },
			func(m proto.Message) any {
				c := fromScheduler(m).GetCredit()
				return Credit{c.GetMessages(), c.GetBytes()}
			},
		},
		{
			"placed", SchedulerPlaced, func() proto.Message { return new(nereidv1.SchedulerEnvelope) },
			func(t *rapid.T) any { return placed{drawWork(t), rapid.Uint64().Draw(t, "worker")} },
			func(w *Writer, v any) error { return w.Placed(v.(placed).Work, v.(placed).Worker) },
			func(v any) proto.Message {
				p := &nereidv1.Placed{Work: work(v.(placed).Work), Worker: v.(placed).Worker}
				return scheduler(&nereidv1.SchedulerMessage{Message: &nereidv1.SchedulerMessage_Placed{Placed: p}})
			},
			func(r *Reader, b Body) (any, error) {
				w, worker, err := r.Placed(b)
				return placed{w, worker}, err
			},
			func(m proto.Message) any {
				p := fromScheduler(m).GetPlaced()
				return placed{workOf(p.GetWork()), p.GetWorker()}
			},
		},
		{
			"batch", WorkBatch, func() proto.Message { return new(nereidv1.WorkEnvelope) },
			func(t *rapid.T) any { return drawBatch(t) },
			func(w *Writer, v any) error { return w.Batch(v.(*infer.Batch), now) },
			func(v any) proto.Message {
				return toWorker(&nereidv1.WorkMessage{Message: &nereidv1.WorkMessage_Batch{Batch: batchMessage(v.(*infer.Batch), now)}})
			},
			func(r *Reader, b Body) (any, error) { return r.Batch(b, now) },
			func(m proto.Message) any {
				return batchOf(m.(*nereidv1.WorkEnvelope).GetMessages()[0].GetBatch(), now)
			},
		},
		{
			"cancel a unit", WorkCancel, func() proto.Message { return new(nereidv1.WorkEnvelope) },
			func(t *rapid.T) any { return cancelled{drawBatchID(t), drawWork(t).Request} },
			func(w *Writer, v any) error { return w.CancelUnit(v.(cancelled).Batch, v.(cancelled).ID) },
			func(v any) proto.Message {
				id := v.(cancelled).Batch
				c := &nereidv1.CancelUnit{Batch: id.Number, Epoch: id.Epoch, Request: work(infer.Work{Request: v.(cancelled).ID}).GetRequest()}
				return toWorker(&nereidv1.WorkMessage{Message: &nereidv1.WorkMessage_Cancel{Cancel: c}})
			},
			func(r *Reader, b Body) (any, error) {
				batch, id, err := r.CancelUnit(b)
				return cancelled{batch, id}, err
			},
			func(m proto.Message) any {
				c := m.(*nereidv1.WorkEnvelope).GetMessages()[0].GetCancel()
				return cancelled{
					infer.BatchID{Epoch: c.GetEpoch(), Number: c.GetBatch()},
					infer.RequestID{Origin: c.GetRequest().GetOrigin(), Number: c.GetRequest().GetNumber()},
				}
			},
		},
		{
			"instance free", WorkerInstanceFree, func() proto.Message { return new(nereidv1.WorkerEnvelope) },
			func(t *rapid.T) any { return drawInstanceFree(t) },
			func(w *Writer, v any) error { return w.InstanceFree(v.(*infer.InstanceFree)) },
			func(v any) proto.Message {
				m := &nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_InstanceFree{InstanceFree: instanceFreeMessage(v.(*infer.InstanceFree))}}
				return &nereidv1.WorkerEnvelope{Messages: []*nereidv1.WorkerMessage{m}}
			},
			func(r *Reader, b Body) (any, error) { return r.InstanceFree(b, now) },
			func(m proto.Message) any {
				return instanceFreeOf(m.(*nereidv1.WorkerEnvelope).GetMessages()[0].GetInstanceFree(), now)
			},
		},
		{
			"unit done", WorkerUnitDone, func() proto.Message { return new(nereidv1.WorkerEnvelope) },
			func(t *rapid.T) any { return *drawUnitDone(t) },
			func(w *Writer, v any) error {
				d := v.(infer.UnitDone)
				return w.UnitDone(&d)
			},
			func(v any) proto.Message {
				d := v.(infer.UnitDone)
				m := &nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_UnitDone{UnitDone: unitDoneMessage(&d)}}
				return &nereidv1.WorkerEnvelope{Messages: []*nereidv1.WorkerMessage{m}}
			},
			func(r *Reader, b Body) (any, error) { return r.UnitDone(b, now) },
			func(m proto.Message) any {
				return unitDoneOf(m.(*nereidv1.WorkerEnvelope).GetMessages()[0].GetUnitDone(), now)
			},
		},
	})
}

// one reads the only message of an envelope.
func (k *kind) one(r *Reader, envelope mem.BufferSlice) (value any, err error) {
	seen := 0
	ended := r.Each(envelope, func(member protowire.Number, b Body) error {
		if seen++; member != k.member {
			return fmt.Errorf("member %d, want %d", member, k.member)
		}
		value, err = k.read(r, b)
		return err
	})
	if ended == nil && seen != 1 {
		return nil, fmt.Errorf("%d messages", seen)
	}
	return value, ended
}

func TestWhatIsWrittenReadsAsByTheGeneratedTypes(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				value := k.draw(t)
				w := NewWriter(new(Spares))
				if err := k.write(w, value); err != nil {
					t.Fatal(err)
				}
				size := w.Len()
				data := w.Take().Materialize()
				if len(data) != size || w.Len() != 0 {
					t.Fatalf("%d bytes were announced, %d came, %d are left", size, len(data), w.Len())
				}
				got := k.envelope()
				if err := proto.Unmarshal(data, got); err != nil {
					t.Fatal(err)
				}
				if want := k.message(value); !proto.Equal(got, want) {
					t.Fatalf("written:\n%v\nwant:\n%v", got, want)
				}
			})
		})
	}
}

func TestWhatTheGeneratedTypesWriteIsRead(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			reader := NewReader(pool)
			rapid.Check(t, func(t *rapid.T) {
				value := k.draw(t)
				data, err := proto.Marshal(k.message(value))
				if err != nil {
					t.Fatal(err)
				}
				got, err := k.one(reader, split(data, rapid.Uint64Range(0, 3).Draw(t, "cuts")))
				if err != nil {
					t.Fatal(err)
				}
				clear(data) // nothing may lie in the network's buffers
				if diff := cmp.Diff(value, got, sight()...); diff != "" {
					t.Fatalf("-want +got\n%s", diff)
				}
				release(got)
			})
		})
	}
	if s := pool.Stats(); s.InUse != 0 {
		t.Errorf("%d bytes of mapped memory are in use at the end", s.InUse)
	}
}

func release(v any) {
	switch v := v.(type) {
	case *infer.Request:
		v.Release()
	case *infer.Batch:
		for _, r := range v.Requests {
			r.Release()
		}
	case returnable:
		v.Response.Release()
	case numbered:
		v.release()
	}
}
