package schedule

import (
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// WorkerSession is the worker's end of one stream to its pool's scheduler. Its methods are those of
// [infer.Scheduler], except for the attachment, which is the session itself. It is safe for concurrent use and never
// blocks. Calls after its end are lost: the next session's [infer.Held] reports the same again.
type WorkerSession struct {
	*session
	executor infer.Executor
	left     chan struct{}
}

// Worker opens a worker's session with the scheduler at the peer's address and reports what the worker has. Batches
// go to the executor, one call at a time.
func (d *Dialler) Worker(ctx context.Context, peer link.Peer, held infer.Held, e infer.Executor) (*WorkerSession, error) {
	hello := &nereidv1.WorkerHello{Protocol: link.Protocol, WorkerId: d.Self.ID, Worker: d.Self.Incarnation, Release: d.Self.Release}
	codec.Held(held, hello)
	common, err := d.dial(ctx, peer, &nereidv1.WorkerMessage{Message: &nereidv1.WorkerMessage_Hello{Hello: hello}},
		func(ctx context.Context, c nereidv1.SchedulerServiceClient) (link.Conn, error) { return c.Work(ctx) })
	if err != nil {
		return nil, err
	}
	s := &WorkerSession{session: common, executor: e, left: make(chan struct{})}
	go s.run(s.receive)
	return s, nil
}

// Grant adds credits of an instance.
func (s *WorkerSession) Grant(g infer.Grant) { s.send(codec.WorkerGrant, codec.Grant(g)) }

// Retire asks that the instance receive no more batches.
func (s *WorkerSession) Retire(id infer.InstanceID) {
	s.send(codec.WorkerRetire, &nereidv1.Retire{Instance: codec.Instance(id)})
}

// InstanceFree says that an instance can accept its next batch.
func (s *WorkerSession) InstanceFree(f *infer.InstanceFree) {
	s.sent(s.link.Write(func(w *codec.Writer) error { return w.InstanceFree(f) }))
}

// UnitDone says that a unit has had its last response, after its InstanceFree.
func (s *WorkerSession) UnitDone(d infer.UnitDone) {
	s.sent(s.link.Write(func(w *codec.Writer) error { return w.UnitDone(&d) }))
}

// Return leaves the requests of a batch with the scheduler, and releases the references to their inputs here.
func (s *WorkerSession) Return(b *infer.Batch, err error) {
	m := &nereidv1.BatchReturned{Batch: b.ID.Number, Epoch: b.ID.Epoch, Error: codec.Error(err)}
	for _, r := range b.Requests {
		id := r.Work.Request
		m.Requests = append(m.Requests, &nereidv1.RequestId{Origin: id.Origin, Number: id.Number})
		r.Release()
	}
	s.send(codec.WorkerBatchReturned, m)
}

// Leave says that the worker has ended, and that nobody will ask again for a request that it started.
func (s *WorkerSession) Leave() { s.send(codec.WorkerLeave, &nereidv1.Leave{}) }

// Left is closed when the scheduler has forgotten the worker, which may exit then.
func (s *WorkerSession) Left() <-chan struct{} { return s.left }

// Drain says that the worker retires all its instances next.
func (s *WorkerSession) Drain() { s.send(codec.WorkerDrain, &nereidv1.Drain{}) }

func (s *WorkerSession) send(member protowire.Number, m proto.Message) {
	s.sent(s.link.Write(func(w *codec.Writer) error { return w.Message(member, m) }))
}

// sent ends the session if something could not be sent: the next session's hello reports it again.
func (s *WorkerSession) sent(err error) {
	if err != nil {
		s.link.Close(err)
	}
}

func (s *WorkerSession) receive(member protowire.Number, b codec.Body) error {
	switch member {
	case codec.WorkBatch:
		batch, err := s.reader.Batch(b, s.clock.Now())
		if err == nil {
			s.executor.Execute(batch)
		}
		return err
	case codec.WorkCancel:
		batch, id, err := s.reader.CancelUnit(b)
		if err == nil {
			s.executor.Cancel(batch, id)
		}
		return err
	case codec.WorkRetired:
		var m nereidv1.Retired
		err := s.reader.Message(b, &m)
		if err == nil {
			s.executor.Retired(codec.InstanceOf(m.GetInstance()))
		}
		return err
	case codec.WorkLeft:
		select {
		case <-s.left:
		default:
			close(s.left)
		}
		return nil
	}
	return errNoMessage
}
