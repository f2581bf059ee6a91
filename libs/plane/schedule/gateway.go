package schedule

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// GatewayHandler receives the scheduler's messages. Its methods are called one at a time and must not block.
type GatewayHandler interface {
	// Refused leaves the request with the gateway.
	Refused(infer.Work, error)
	// Response ends a request without a worker and passes the response on. With returned, the request goes back to
	// the gateway, which has retained it: the handler sets Returned.
	Response(r *infer.Response, returned bool)
	// Placed says which worker will run the request: if that worker is lost, nobody answers.
	Placed(w infer.Work, worker uint64)
	// Draining says that the scheduler wants no new requests.
	Draining()
}

// GatewaySession is the gateway's end of one stream to a pool's scheduler. It is safe for concurrent use.
type GatewaySession struct {
	*session
	handler GatewayHandler

	mu       sync.Mutex
	messages int64         // credit; guarded by mu
	bytes    int64         // credit; guarded by mu
	credited chan struct{} // closed with the first credit
}

// Gateway opens a gateway's session with the scheduler at the peer's address.
// It returns when requests can be submitted, or fails when ctx is done.
func (d *Dialler) Gateway(ctx context.Context, peer link.Peer, h GatewayHandler) (*GatewaySession, error) {
	hello := &nereidv1.GatewayMessage{Message: &nereidv1.GatewayMessage_Hello{Hello: &nereidv1.GatewayHello{
		Protocol: link.Protocol, GatewayId: d.Self.ID, Gateway: d.Self.Incarnation, Release: d.Self.Release, Epoch: d.Met,
	}}}
	common, err := d.dial(ctx, peer, hello, func(ctx context.Context, c nereidv1.SchedulerServiceClient) (link.Conn, error) {
		return c.Submit(ctx)
	})
	if err != nil {
		return nil, err
	}
	s := &GatewaySession{session: common, handler: h, credited: make(chan struct{})}
	go s.run(s.receive)
	select {
	case <-s.credited:
		return s, nil
	case <-s.Done():
		return nil, s.Err()
	case <-ctx.Done():
		s.Close()
		<-s.Done()
		return nil, link.Cause(context.Cause(ctx))
	}
}

// Submit sends a request. The caller still owns it with all references: until it is answered it may have to be
// resubmitted elsewhere. An error says that it was not sent: its deadline has passed, the scheduler's queue is full,
// it cannot be encoded, or the session has ended. Submit does not block.
func (s *GatewaySession) Submit(r *infer.Request) error {
	bytes := codec.RequestBytes(r)
	if err := s.spend(bytes, r.Model.Name); err != nil {
		return err
	}
	now := s.clock.Now()
	err := s.link.Write(func(w *codec.Writer) error { return w.Submit(r, now) })
	if err == nil {
		return nil
	}
	s.credit(codec.Credit{Messages: 1, Bytes: uint64(bytes)})
	if errors.Is(err, link.ErrClosed) {
		err = errs.Wrap(errs.NoWorker, err, "the connection to the scheduler of model '%s' is down", r.Model.Name).WithModel(r.Model.Name)
	}
	return err
}

// spend consumes the credit for a request. A request of any size may go as long as any byte credit is left, so that
// no request is too large forever.
func (s *GatewaySession) spend(bytes int64, model string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.messages <= 0 || s.bytes <= 0 {
		return errs.New(errs.QueueFull, "the scheduler's queue is full").WithModel(model)
	}
	s.messages--
	s.bytes -= bytes
	return nil
}

func (s *GatewaySession) credit(c codec.Credit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages += int64(c.Messages)
	s.bytes += int64(min(c.Bytes, maxBytes))
}

// Cancel says that nobody waits for a request any more.
func (s *GatewaySession) Cancel(id infer.RequestID) {
	_ = s.link.Write(func(w *codec.Writer) error { return w.Cancel(id) }) // if it fails, the session is over, and with it the queueing of the request
}

// CacheUsed reports a use of the response cache.
func (s *GatewaySession) CacheUsed(u infer.CacheUse) {
	_ = s.link.WriteLater(func(w *codec.Writer) error { return w.CacheUse(&u) }) // if it fails, the count is lost with the session
}

// EnsembleEnded reports the end of a request for an ensemble.
func (s *GatewaySession) EnsembleEnded(e infer.EnsembleEnd) {
	_ = s.link.WriteLater(func(w *codec.Writer) error { return w.EnsembleEnd(&e) }) // if it fails, the count is lost with the session
}

func (s *GatewaySession) receive(member protowire.Number, b codec.Body) error {
	switch member {
	case codec.SchedulerRefused:
		w, refusal, err := s.reader.Refused(b)
		if err == nil {
			s.handler.Refused(w, refusal)
		}
		return err
	case codec.SchedulerResponse:
		r, returned, err := s.reader.Response(b)
		if err == nil {
			s.handler.Response(r, returned)
		}
		return err
	case codec.SchedulerCredit:
		return s.receiveCredit(b)
	case codec.SchedulerPlaced:
		w, worker, err := s.reader.Placed(b)
		if err == nil {
			s.handler.Placed(w, worker)
		}
		return err
	case codec.SchedulerDrain:
		s.handler.Draining()
		return nil
	}
	return errNoMessage
}

func (s *GatewaySession) receiveCredit(b codec.Body) error {
	c, err := s.reader.Credit(b)
	if err != nil {
		return err
	}
	s.credit(c)
	select {
	case <-s.credited:
	default:
		close(s.credited)
	}
	return nil
}
