package schedule

import (
	"sync"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/remote/stream"
	"github.com/nereid-serving/nereid/libs/remote/wire"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// workerEnd is the scheduler's end of one worker's stream: the executor through
// which the scheduler sees the worker.
type workerEnd struct {
	end
	server *Server
	reader *wire.Reader // owned by the link's reading goroutine

	mu    sync.Mutex
	under map[uint64]*infer.Order // under way, by number; nil after the end; guarded by mu
	held  map[heldOrder]struct{}  // those of earlier streams that still run; guarded by mu
}

// heldOrder names an order of an earlier stream.
type heldOrder struct{ epoch, number uint64 }

var _ infer.Executor = (*workerEnd)(nil)

// Work is a worker's stream.
func (s *Server) Work(conn nereidv1.SchedulerService_WorkServer) error {
	t, err := s.present()
	if err != nil {
		return stream.Status(err)
	}
	var hello nereidv1.WorkerHello
	if err := s.greet(t, conn, &hello); err != nil {
		return stream.Status(stream.Cause(err))
	}
	held := wire.HeldOf(&hello)
	e := s.newWorkerEnd(t, conn, hello.GetWorker(), held)
	log := s.config.Log.With(zap.String("worker", hello.GetWorkerId()), zap.Uint64("incarnation", e.incarnation), zap.String("release", hello.GetRelease()))
	s.workers.enter(e)
	defer s.workers.leave(e)
	log.Info("a worker has connected", zap.Int("running", len(held.Running)))
	t.backend.Attach(e.incarnation, held, e)
	err = s.run(conn.Context(), &e.end, e.reader, e.receive)
	t.backend.Disconnect(e.incarnation, e.stop())
	log.Info("a worker's stream has ended", zap.Error(err))
	return stream.Status(err)
}

func (s *Server) newWorkerEnd(t *term, conn stream.Conn, incarnation uint64, held infer.Held) *workerEnd {
	e := &workerEnd{
		end:    end{incarnation: incarnation, term: t, link: stream.New(conn), over: make(chan struct{})},
		server: s, reader: wire.NewReader(s.config.Tensors),
		under: make(map[uint64]*infer.Order), held: make(map[heldOrder]struct{}),
	}
	for _, r := range held.Running {
		e.held[heldOrder{r.Epoch, r.Order}] = struct{}{}
	}
	return e
}

// stop returns the orders under way. Later ones are refused.
func (e *workerEnd) stop() []*infer.Order {
	e.mu.Lock()
	defer e.mu.Unlock()
	under := make([]*infer.Order, 0, len(e.under))
	for _, o := range e.under {
		under = append(under, o)
	}
	e.under = nil
	return under
}

// Execute sends an order. Its requests' references are kept until it is over,
// in case the worker never gets it.
func (e *workerEnd) Execute(o *infer.Order) {
	for _, r := range o.Requests {
		if g := e.server.gateways.get(r.Work.Request.Origin); g != nil {
			g.ordered(r.Work, e.incarnation)
		}
	}
	if err := e.begin(o); err != nil {
		e.link.Close(err) // unless it has ended
		e.term.backend.Refuse(o, errGone)
	}
}

// begin sends an order and enters it. The lock is held meanwhile, so that its
// end does not come, after which it is the backend's, while it is still read.
func (e *workerEnd) begin(o *infer.Order) error {
	now := e.server.config.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.under == nil {
		return errGone
	}
	err := e.link.Write(func(w *wire.Writer) error { return w.Order(o, now) })
	if err == nil {
		e.under[o.ID] = o
	}
	return err
}

// Cancel says that nobody waits for one request of an order any more.
func (e *workerEnd) Cancel(order uint64, id infer.RequestID) {
	e.sent(e.link.Write(func(w *wire.Writer) error { return w.CancelOrder(order, id) }))
}

// Retired says that nothing more comes for an instance.
func (e *workerEnd) Retired(id infer.InstanceID) {
	e.sent(e.link.Write(func(w *wire.Writer) error {
		return w.Message(wire.OrderRetired, &nereidv1.Retired{Instance: wire.Instance(id)})
	}))
}

// sent ends the stream when something could not be said: the worker says again
// what it holds on its next one.
func (e *workerEnd) sent(err error) {
	if err != nil {
		e.link.Close(err)
	}
}

func (e *workerEnd) receive(member protowire.Number, b wire.Body) error {
	switch member {
	case wire.WorkerCompletion:
		c, err := e.reader.Completion(b, e.server.config.Clock.Now())
		if err != nil {
			return err
		}
		return e.complete(c)
	case wire.WorkerGrant:
		var m nereidv1.Grant
		return e.cold(b, &m, func() error { return e.grant(wire.GrantOf(&m)) })
	case wire.WorkerRetire:
		var m nereidv1.Retire
		return e.cold(b, &m, func() error { return e.retire(wire.InstanceOf(m.GetInstance())) })
	case wire.WorkerOrderRefused:
		var m nereidv1.OrderRefused
		return e.cold(b, &m, func() error { return e.refused(&m) })
	case wire.WorkerDrain:
		return nil // the retirements that follow say it for each instance
	}
	return errNoMessage
}

// cold reads a message of a rare kind and does what it says.
func (e *workerEnd) cold(b wire.Body, m proto.Message, do func() error) error {
	if err := e.reader.Message(b, m); err != nil {
		return err
	}
	return do()
}

func (e *workerEnd) grant(g infer.Grant) error {
	if g.Instance.Worker != e.incarnation {
		return errForeign
	}
	e.term.backend.Grant(g)
	return nil
}

func (e *workerEnd) retire(id infer.InstanceID) error {
	if id.Worker != e.incarnation {
		return errForeign
	}
	e.term.backend.Retire(id)
	return nil
}

func (e *workerEnd) complete(c *infer.Completion) error {
	if c.Instance.Worker != e.incarnation {
		return errForeign
	}
	fits := func(o *infer.Order) bool { return o.Instance == c.Instance && len(o.Requests) == len(c.Outcomes) }
	if o := e.take(c.Epoch, c.Order, fits); o != nil {
		for _, r := range o.Requests {
			r.Release()
		}
	} else if !e.takeHeld(heldOrder{c.Epoch, c.Order}) {
		return errUnasked
	}
	e.term.backend.Complete(c)
	return nil
}

// refused hands an order back without the requests that the worker has answered.
func (e *workerEnd) refused(m *nereidv1.OrderRefused) error {
	back := make(map[infer.RequestID]bool, len(m.GetRequests()))
	for _, id := range m.GetRequests() {
		back[infer.RequestID{Origin: id.GetOrigin(), Number: id.GetNumber()}] = true
	}
	o := e.take(m.GetEpoch(), m.GetOrder(), func(o *infer.Order) bool { return names(o, back) })
	if o == nil {
		return errUnasked
	}
	rest := &infer.Order{ID: o.ID, Epoch: o.Epoch, Instance: o.Instance, LatestStart: o.LatestStart}
	for i, r := range o.Requests {
		if !back[r.Work.Request] {
			r.Release()
			continue
		}
		rest.Requests = append(rest.Requests, r)
		rest.Enqueued = append(rest.Enqueued, o.Enqueued[i])
	}
	e.term.backend.Refuse(rest, wire.ErrorOf(m.GetError()))
	return nil
}

// names reports whether the order has each of the requests.
func names(o *infer.Order, requests map[infer.RequestID]bool) bool {
	found := 0
	for _, r := range o.Requests {
		if requests[r.Work.Request] {
			found++
		}
	}
	return found == len(requests)
}

// take returns an order that is under way no more, if it is one that fits.
func (e *workerEnd) take(epoch, number uint64, fits func(*infer.Order) bool) *infer.Order {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.under[number]
	if o == nil || o.Epoch != epoch || !fits(o) {
		return nil
	}
	delete(e.under, number)
	return o
}

func (e *workerEnd) takeHeld(h heldOrder) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.held[h]
	delete(e.held, h)
	return ok
}
