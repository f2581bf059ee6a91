package schedule

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/remote/stream"
	"github.com/nereid-serving/nereid/libs/remote/wire"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// WorkerSession is the worker's end of one stream to its pool's scheduler. Its
// methods are those of [infer.Scheduler], but for the attachment, which is the
// session itself. It is safe for concurrent use and never blocks. What it is
// told after its end is lost: the next session's [infer.Held] says it again.
type WorkerSession struct {
	*session
	executor infer.Executor
}

// Worker opens a worker's session with the scheduler at the peer's address and
// tells it what the worker holds. Orders go to the executor, one call at a
// time.
func (d *Dialler) Worker(ctx context.Context, peer stream.Peer, held infer.Held, e infer.Executor) (*WorkerSession, error) {
	hello := &nereidv1.WorkerHello{Protocol: stream.Protocol, WorkerId: d.Self.ID, Worker: d.Self.Incarnation, Release: d.Self.Release}
	wire.Held(held, hello)
	common, err := d.dial(ctx, peer, &nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_Hello{Hello: hello}},
		func(ctx context.Context, c nereidv1.SchedulerServiceClient) (stream.Conn, error) { return c.Work(ctx) })
	if err != nil {
		return nil, err
	}
	s := &WorkerSession{session: common, executor: e}
	go s.run(s.receive)
	return s, nil
}

// Grant offers an instance's credits.
func (s *WorkerSession) Grant(g infer.Grant) { s.send(wire.WorkerGrant, wire.Grant(g)) }

// Retire asks that the instance get no more orders.
func (s *WorkerSession) Retire(id infer.InstanceID) {
	s.send(wire.WorkerRetire, &nereidv1.Retire{Instance: wire.Instance(id)})
}

// Complete reports the end of an order.
func (s *WorkerSession) Complete(c *infer.Completion) {
	s.sent(s.link.Write(func(w *wire.Writer) error { return w.Completion(c) }))
}

// Refuse leaves the requests of an order with the scheduler. The references on
// their inputs are given up here.
func (s *WorkerSession) Refuse(o *infer.Order, err error) {
	m := &nereidv1.OrderRefused{Order: o.ID, Epoch: o.Epoch, Error: wire.Error(err)}
	for _, r := range o.Requests {
		id := r.Work.Request
		m.Requests = append(m.Requests, &nereidv1.RequestId{Origin: id.Origin, Number: id.Number})
		r.Release()
	}
	s.send(wire.WorkerOrderRefused, m)
}

// Drain says that the worker retires all its instances next.
func (s *WorkerSession) Drain() { s.send(wire.WorkerDrain, &nereidv1.Drain{}) }

func (s *WorkerSession) send(member protowire.Number, m proto.Message) {
	s.sent(s.link.Write(func(w *wire.Writer) error { return w.Message(member, m) }))
}

// sent ends the session when something could not be said: the next one's hello
// says it again.
func (s *WorkerSession) sent(err error) {
	if err != nil {
		s.link.Close(err)
	}
}

func (s *WorkerSession) receive(member protowire.Number, b wire.Body) error {
	switch member {
	case wire.OrderExecution:
		o, err := s.reader.Order(b, s.clock.Now())
		if err == nil {
			s.executor.Execute(o)
		}
		return err
	case wire.OrderCancel:
		order, id, err := s.reader.CancelOrder(b)
		if err == nil {
			s.executor.Cancel(order, id)
		}
		return err
	case wire.OrderRetired:
		var m nereidv1.Retired
		err := s.reader.Message(b, &m)
		if err == nil {
			s.executor.Retired(wire.InstanceOf(m.GetInstance()))
		}
		return err
	}
	return errNoMessage
}
