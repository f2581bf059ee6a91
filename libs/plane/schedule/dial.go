package schedule

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Identity identifies the dialing process: a gateway or a worker.
type Identity struct {
	// ID is that of the service; Incarnation the epoch of its lease.
	ID          string
	Incarnation uint64
	// Release is for the peer's log.
	Release string
}

// Dialler opens sessions.
type Dialler struct {
	Self  Identity
	Clock mono.Clock
	// Pool provides memory for received tensors.
	Pool *tensor.Pool
	// Met is the highest epoch that a gateway has seen. A worker reports its own in
	// [infer.Held].
	Met uint64
}

// Scheduler is the dialed scheduler.
type Scheduler struct {
	ID, Pool, Release string
	// Epoch is that of its lease on the pool.
	Epoch uint64
}

// session is what the sessions of gateways and workers have in common.
type session struct {
	connection *grpc.ClientConn
	cancel     context.CancelFunc
	scheduler  Scheduler
	clock      mono.Clock
	link       *link.Link
	reader     *codec.Reader // owned by the link's reading goroutine
}

// Scheduler is the scheduler at the other end.
func (s *session) Scheduler() Scheduler { return s.scheduler }

// Close ends the session. Unsent messages are lost.
func (s *session) Close() { s.link.Close(link.ErrClosed) }

// Done is closed when the session has ended; the handler is not called any
// more then.
func (s *session) Done() <-chan struct{} { return s.link.Done() }

// Err returns why the session ended, an *errs.Error; valid after Done.
func (s *session) Err() error { return s.link.Err() }

// method opens the gRPC stream of a session.
type method func(context.Context, nereidv1.SchedulerServiceClient) (link.Conn, error)

// dial opens a stream and exchanges hellos, as long as ctx and the timeout
// allow. The stream lives on after ctx.
func (d *Dialler) dial(ctx context.Context, peer link.Peer, hello proto.Message, open method) (*session, error) {
	connection, err := link.Connect(peer)
	if err != nil {
		return nil, link.Cause(err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &session{connection: connection, cancel: cancel, clock: d.Clock, reader: codec.NewReader(d.Pool)}
	ctx, timeout := context.WithTimeout(ctx, helloTimeout)
	defer timeout()
	stop := context.AfterFunc(ctx, cancel)
	err = s.greet(life, hello, open)
	if !stop() { // ctx has ended the stream
		err = context.Cause(ctx)
	}
	if err != nil {
		s.end()
		return nil, link.Cause(err)
	}
	return s, nil
}

func (s *session) greet(ctx context.Context, hello proto.Message, open method) error {
	conn, err := open(ctx, nereidv1.NewSchedulerServiceClient(s.connection))
	if err != nil {
		return err
	}
	if err := link.SendHello(conn, hello); err != nil {
		return err
	}
	var answer nereidv1.SchedulerHello
	if err := link.ReceiveHello(conn, &answer); err != nil {
		return err
	}
	s.scheduler = Scheduler{ID: answer.GetSchedulerId(), Pool: answer.GetPool(), Release: answer.GetRelease(), Epoch: answer.GetEpoch()}
	s.link = link.New(conn)
	return link.CheckProtocol("the scheduler", answer.GetProtocol())
}

// run moves messages until the session's end.
func (s *session) run(receive func(protowire.Number, codec.Body) error) {
	defer s.end()
	_ = s.link.Run(context.Background(), func(envelope mem.BufferSlice) error { // Err has the cause
		return s.reader.Each(envelope, receive)
	})
}

func (s *session) end() {
	s.cancel()
	_ = s.connection.Close() // nothing is left that could fail
	s.connection = nil       // or the session would keep alive what gRPC forgets
}
