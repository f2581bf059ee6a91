package export

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Identity identifies one end of a stream.
type Identity struct {
	// ID names the process; Epoch is its incarnation.
	ID    string
	Epoch uint64
	// Release is for logs.
	Release string
}

// Progress counts the acknowledged responses of one incarnation. It outlives the streams. The
// zero value is none.
type Progress struct{ taken, streams atomic.Uint64 }

func (e *Endpoint) hello(p *Progress) *nereidv1.TensorMessage {
	i := e.Identity()
	return &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: &nereidv1.TensorHello{
		Protocol: link.Protocol, Id: i.ID, Epoch: i.Epoch, Release: i.Release, Taken: p.taken.Load(), Stream: p.streams.Load(),
		TakesCalls: e.config.Calls != nil,
	}}}
}

// Session is a stream that this process has begun.
type Session struct {
	end     *Endpoint
	theirs  Identity
	dropped mono.Time // when the process last dropped responses for this one; 0 is never
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	stream  *stream
}

// dialTimeout bounds a try to begin a stream.
const dialTimeout = 5 * time.Second

// Dial opens a stream to a process; p counts the responses from it that were acknowledged so
// far. The previous stream has ended. ctx bounds only the opening. The caller runs the session.
func (e *Endpoint) Dial(ctx context.Context, at link.Peer, p *Progress) (*Session, error) {
	conn, err := link.Connect(at)
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{end: e, conn: conn, cancel: cancel}
	ctx, done := context.WithTimeout(ctx, dialTimeout)
	defer done()
	unhook := context.AfterFunc(ctx, cancel)
	err = s.greet(life, p)
	if !unhook() {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *Session) greet(ctx context.Context, p *Progress) error {
	exchange, err := nereidv1.NewTensorServiceClient(s.conn).Exchange(ctx)
	if err != nil {
		return err
	}
	p.streams.Add(1)
	if err := link.SendHello(exchange, s.end.hello(p)); err != nil {
		return err
	}
	theirs := new(nereidv1.TensorHello)
	if err := link.ReceiveHello(exchange, theirs); err != nil {
		return err
	}
	if err := link.CheckProtocol(theirs.GetId(), theirs.GetProtocol()); err != nil {
		return err
	}
	s.theirs = Identity{ID: theirs.GetId(), Epoch: theirs.GetEpoch(), Release: theirs.GetRelease()}
	if ago := theirs.DroppedNs; ago != nil {
		s.dropped = s.end.config.Clock.Now().Add(-time.Duration(min(*ago, math.MaxInt64)))
	}
	s.stream, err = s.end.newStream(exchange)
	if err == nil {
		s.stream.progress = p
	}
	return err
}

// Peer is the process at the other end.
func (s *Session) Peer() Identity { return s.theirs }

// Run moves tensors and responses until the stream ends or ctx is done, and returns
// the cause.
func (s *Session) Run(ctx context.Context) error {
	defer s.close()
	p := s.end.peer(s.theirs.Epoch)
	if p == nil {
		return errStopped()
	}
	if err := p.dial(s.stream); err != nil {
		return err
	}
	if dropped := s.end.config.Dropped; dropped != nil && s.dropped != 0 {
		dropped(s.theirs.Epoch, s.dropped)
	}
	return p.run(ctx, s.stream)
}

func (s *Session) close() {
	s.cancel()
	_ = s.conn.Close() // the stream has ended
}
