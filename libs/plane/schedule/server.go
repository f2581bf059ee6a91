package schedule

import (
	"context"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Backend is the scheduler behind a [Server]. Its methods do not block.
type Backend interface {
	infer.Scheduler
	// Submit takes ownership of a request: it will be dispatched or answered. On an error the
	// caller still owns it.
	Submit(*infer.Request) error
	// Cancel says that nobody waits for a request any more. It may be unknown.
	Cancel(infer.RequestID)
	// CacheUsed counts a gateway's use of its response cache for a request.
	CacheUsed(infer.CacheUse)
	// EnsembleEnded counts a request for an ensemble.
	EnsembleEnded(infer.EnsembleEnd)
	// Leave says that the stream of a gateway has ended: its waiting requests are dropped, since the gateway
	// resubmits those that it still wants.
	Leave(origin uint64)
	// Deposed says that a peer has seen a scheduler with a later epoch.
	Deposed(by uint64)
	// Disconnect says that the stream of a worker has ended, and with it its credits. The scheduler owns the requests
	// of the in-flight batches again, with their references; but it does not know whether they ran until the worker
	// attaches again or its lease ends.
	Disconnect(worker uint64, under []*infer.Batch)
}

// Config configures a [Server].
type Config struct {
	// ID and Pool are the scheduler's, Release is for the logs of peers.
	ID, Pool, Release string
	Clock             mono.Clock
	Log               *zap.Logger
	// Tensors provides memory for the small tensors in requests.
	Tensors *tensor.Pool
	// Owners say which process an incarnation belongs to, so that a peer can only act as the process of its
	// certificate; nil knows none.
	Owners identity.Owners
	// Window is how much each gateway may have in the scheduler's queue. It is as large as the queue itself if one
	// gateway may fill the queue.
	Window Window
}

// Window limits the data of one peer in flight, in messages and in bytes of their descriptors
// and tensors.
type Window struct {
	Messages, Bytes int64
}

// Server is the scheduler's end of all its streams, and the scheduler's [infer.Responder], which sends responses to
// the gateways that the requests came from. It serves from Serve to Stop, any number of times; otherwise it refuses
// streams with UNAVAILABLE. It is safe for concurrent use.
type Server struct {
	nereidv1.UnimplementedSchedulerServiceServer
	config   Config
	gateways ends[*gatewayEnd]
	workers  ends[*workerEnd]

	mu   sync.Mutex
	term *term // nil while it does not serve; guarded by mu
}

// term is one period of serving.
type term struct {
	epoch   uint64
	backend Backend
	ctx     context.Context // done when the term is over
	end     context.CancelCauseFunc
}

var (
	_ nereidv1.SchedulerServiceServer = (*Server)(nil)
	_ infer.Responder                 = (*Server)(nil)
)

// NewServer returns a server that does not serve yet.
func NewServer(c Config) *Server {
	s := &Server{config: c}
	s.gateways.of, s.workers.of = make(map[uint64]*gatewayEnd), make(map[uint64]*workerEnd)
	if c.Tensors == nil {
		s.config.Tensors = tensor.NewPool(0)
	}
	return s
}

// Register has a gRPC server, made with [link.ServerOptions], take the
// streams.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	nereidv1.RegisterSchedulerServiceServer(r, s)
}

// Serve accepts streams for the backend, which holds the pool's lease under the given epoch. It
// ends streams that remain from an earlier epoch.
func (s *Server) Serve(epoch uint64, b Backend) {
	t := &term{epoch: epoch, backend: b}
	t.ctx, t.end = context.WithCancelCause(context.Background())
	s.turn(t)
}

// Stop ends all streams, with ABORTED, and refuses new ones, with UNAVAILABLE.
func (s *Server) Stop() { s.turn(nil) }

func (s *Server) turn(t *term) {
	s.mu.Lock()
	before := s.term
	s.term = t
	s.mu.Unlock()
	if before != nil {
		before.end(errEnded)
	}
}

func (s *Server) present() (*term, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil {
		return nil, errNotServing
	}
	return s.term, nil
}

// Drain asks the connected gateways to submit nothing new.
func (s *Server) Drain() { s.gateways.each((*gatewayEnd).drain) }

// Respond sends a response to the gateway that made the request. If the gateway has no stream,
// the response is dropped: the gateway submits the request again.
func (s *Server) Respond(r *infer.Response) {
	if g := s.gateways.get(r.Work.Request.Origin); g != nil {
		g.respond(r)
	}
	r.Release()
}

// Placed reports to the gateway that made a request on which worker it runs. A gateway
// without a stream submits the request again, and gets the report then.
func (s *Server) Placed(w infer.Work, worker uint64) {
	if g := s.gateways.get(w.Request.Origin); g != nil {
		g.placed(w, worker)
	}
}

// Left confirms to a worker that it has left. A worker without a stream reports again that
// it has ended, to the scheduler that leads then.
func (s *Server) Left(worker uint64) {
	if e := s.workers.get(worker); e != nil {
		e.left()
	}
}

// greet receives a peer's hello and answers it, with the member that hellos are
// of every kind of message, unless admit refuses the peer or it has met a later
// scheduler.
func (s *Server) greet(t *term, conn link.Conn, hello interface {
	proto.Message
	GetProtocol() uint32
	GetEpoch() uint64
}, admit func() error,
) error {
	if err := link.ExpectHello(t.ctx, conn, hello); err != nil {
		return err
	}
	if err := s.allow(hello.GetProtocol(), admit); err != nil {
		s.config.Log.Warn("a peer was refused: it may try again", zap.Error(err), zap.Uint32("protocol", hello.GetProtocol()))
		return err
	}
	if met := hello.GetEpoch(); met > t.epoch {
		t.backend.Deposed(met)
		return errs.New(errs.PeerUnreachable, "the scheduler of epoch %d has been replaced by that of epoch %d", t.epoch, met)
	}
	c := &s.config
	// Hellos are the same member of the messages to gateways and to workers.
	return link.SendHello(conn, &nereidv1.SchedulerMessage{Message: &nereidv1.SchedulerMessage_Hello{Hello: &nereidv1.SchedulerHello{
		Protocol: link.Protocol, SchedulerId: c.ID, Pool: c.Pool, Epoch: t.epoch, Release: c.Release,
	}}})
}

// allow refuses a peer of another protocol, or one that is not who it says.
func (s *Server) allow(protocol uint32, admit func() error) error {
	if err := link.CheckProtocol("the peer", protocol); err != nil {
		return err
	}
	return admit()
}

// run moves the messages of a stream until its end or that of its term.
func (s *Server) run(conn context.Context, e *end, reader *codec.Reader, receive func(protowire.Number, codec.Body) error) error {
	stop := context.AfterFunc(e.term.ctx, func() { e.link.Close(context.Cause(e.term.ctx)) })
	defer stop()
	return e.link.Run(conn, func(envelope mem.BufferSlice) error { return reader.Each(envelope, receive) })
}
