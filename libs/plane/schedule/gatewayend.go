package schedule

import (
	"sync"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// maxBytes keeps sums of bytes far from where they would overflow.
const maxBytes = 1 << 48

// gatewayEnd is the scheduler's end of one gateway's stream.
type gatewayEnd struct {
	end
	server *Server
	reader *codec.Reader // owned by the link's reading goroutine
	credit credit
}

// Submit is a gateway's stream.
func (s *Server) Submit(conn nereidv1.SchedulerService_SubmitServer) error {
	t, err := s.present()
	if err != nil {
		return link.Status(err)
	}
	var hello nereidv1.GatewayHello
	admit := func() error {
		return identity.CheckIncarnation(conn.Context(), hello.GetGatewayId(), hello.GetGateway(), s.config.Owners)
	}
	if err := s.greet(t, conn, &hello, admit); err != nil {
		return link.Status(link.Cause(err))
	}
	g := &gatewayEnd{
		end:    end{incarnation: hello.GetGateway(), term: t, link: link.New(conn), over: make(chan struct{})},
		server: s, reader: codec.NewReader(s.config.Tensors), credit: newCredit(s.config.Window),
	}
	log := s.config.Log.With(zap.String("gateway", hello.GetGatewayId()), zap.Uint64("incarnation", g.incarnation), zap.String("release", hello.GetRelease()))
	s.gateways.enter(g)
	defer s.gateways.leave(g)
	log.Info("a gateway has connected")
	g.grant(g.credit.first())
	err = s.run(conn.Context(), &g.end, g.reader, g.receive)
	t.backend.Leave(g.incarnation)
	log.Info("a gateway's stream has ended", zap.Error(err))
	return link.Status(err)
}

func (g *gatewayEnd) receive(member protowire.Number, b codec.Body) error {
	switch member {
	case codec.GatewaySubmit:
		r, err := g.reader.Submit(b, g.server.config.Clock.Now())
		if err != nil {
			return err
		}
		return g.submit(r)
	case codec.GatewayCancel:
		id, err := g.reader.Cancel(b)
		if err == nil && id.Origin != g.incarnation {
			err = errForeign
		}
		if err == nil {
			g.term.backend.Cancel(id)
		}
		return err
	case codec.GatewayCacheUse:
		u, err := g.reader.CacheUse(b)
		if err == nil {
			g.term.backend.CacheUsed(u)
		}
		return err
	case codec.GatewayEnsembleEnd:
		e, err := g.reader.EnsembleEnd(b)
		if err == nil {
			g.term.backend.EnsembleEnded(e)
		}
		return err
	}
	return errNoMessage
}

// submit takes a request that the gateway may submit.
func (g *gatewayEnd) submit(r *infer.Request) error {
	if err := g.count(r); err != nil {
		r.Release()
		return err
	}
	g.pass(r)
	return nil
}

// pass passes a request to the backend, or says why it does not take it. Work is
// copied before: the request is the backend's afterwards.
func (g *gatewayEnd) pass(r *infer.Request) {
	w := r.Work
	if err := g.term.backend.Submit(r); err != nil {
		r.Release()
		g.send(func(out *codec.Writer) error { return out.Refused(w, err) })
		g.left(w)
	}
}

func (g *gatewayEnd) count(r *infer.Request) error {
	switch {
	case r.Work.Request.Origin != g.incarnation:
		return errForeign
	case !g.credit.use(tryOf(r.Work), codec.RequestBytes(r)):
		return errCredit
	}
	return nil
}

// respond sends a response, which stays the caller's.
func (g *gatewayEnd) respond(r *infer.Response) {
	g.send(func(w *codec.Writer) error { return w.Response(codec.SchedulerResponse, r) })
	if r.Final {
		g.left(r.Work)
	}
}

// placed says that a request goes to a worker. The gateway needs it where that worker
// is lost, which takes longer than a beat.
func (g *gatewayEnd) placed(w infer.Work, worker uint64) {
	if err := g.link.WriteLater(func(out *codec.Writer) error { return out.Placed(w, worker) }); err != nil {
		g.link.Close(err)
	}
	g.left(w)
}

// left gives the credit back of a request that is in the queue no more.
func (g *gatewayEnd) left(w infer.Work) {
	if c := g.credit.back(tryOf(w)); c != (codec.Credit{}) {
		g.grant(c)
	}
}

func (g *gatewayEnd) grant(c codec.Credit) {
	g.send(func(w *codec.Writer) error { return w.Credit(codec.SchedulerCredit, c) })
}

func (g *gatewayEnd) drain() {
	g.send(func(w *codec.Writer) error { return w.Message(codec.SchedulerDrain, &nereidv1.Drain{}) })
}

// send ends the stream when something cannot be said: its gateway submits again
// what it still waits for.
func (g *gatewayEnd) send(write func(*codec.Writer) error) {
	if err := g.link.Write(write); err != nil {
		g.link.Close(err)
	}
}

// credit is what a gateway may still send, as the scheduler counts it. It is
// safe for concurrent use.
type credit struct {
	window Window

	mu     sync.Mutex
	queued map[try]int64 // bytes of the requests in the queue; guarded by mu
	used   Window        // what they use up together; guarded by mu
	owed   Window        // has become free and was not given back yet; guarded by mu
}

// try names one submission of a gateway's request.
type try struct {
	number  uint64
	attempt uint32
}

func tryOf(w infer.Work) try { return try{w.Request.Number, w.Attempt} }

func newCredit(w Window) credit { return credit{window: w, queued: make(map[try]int64)} }

// first is what a gateway begins with.
func (c *credit) first() codec.Credit {
	return codec.Credit{Messages: uint32(c.window.Messages), Bytes: uint64(c.window.Bytes)}
}

// use counts a request, and reports whether the gateway had credit for it.
func (c *credit) use(t try, bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used.Messages+c.owed.Messages >= c.window.Messages || c.used.Bytes+c.owed.Bytes >= c.window.Bytes {
		return false
	}
	if _, twice := c.queued[t]; twice {
		return false
	}
	c.queued[t] = bytes
	c.used.Messages++
	c.used.Bytes += bytes
	return true
}

// back counts a request as gone from the queue, and returns what is to be given
// back now: nothing while the gateway has enough, so that credit goes in few
// messages.
func (c *credit) back(t try) (give codec.Credit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, ok := c.queued[t]
	if !ok {
		return give
	}
	delete(c.queued, t)
	c.used.Messages--
	c.used.Bytes -= bytes
	c.owed.Messages++
	c.owed.Bytes += bytes
	if c.enough(c.used.Messages, c.owed.Messages, c.window.Messages) && c.enough(c.used.Bytes, c.owed.Bytes, c.window.Bytes) {
		return give
	}
	give = codec.Credit{Messages: uint32(c.owed.Messages), Bytes: uint64(c.owed.Bytes)}
	c.owed = Window{}
	return give
}

// enough reports whether a gateway can wait for what it is owed: it has a half
// of its window left, and is owed less than a quarter.
func (c *credit) enough(used, owed, window int64) bool {
	return used+owed <= window/2 && owed < max(window/4, 1)
}
