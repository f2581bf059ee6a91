package schedule

import (
	"slices"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// workerEnd is the scheduler's end of one worker's stream: the executor through which the scheduler uses the worker.
type workerEnd struct {
	end
	server *Server
	reader *codec.Reader // owned by the link's reading goroutine

	mu    sync.Mutex
	under map[infer.BatchID]*sentBatch // nil after the end; guarded by mu
}

// sentBatch is a batch that its worker has, as far as is known.
type sentBatch struct {
	*infer.Batch // as it was sent; nil for one of an earlier stream
	// ended[i] says that unit i has ended; open is how many have not. If an instance is free of the batch, the open
	// units have more responses to come. nil means that no unit has ended.
	ended []bool
	open  int
	free  bool
}

var _ infer.Executor = (*workerEnd)(nil)

// Work serves a worker's stream.
func (s *Server) Work(conn nereidv1.SchedulerService_WorkServer) error {
	t, err := s.present()
	if err != nil {
		return link.Status(err)
	}
	var hello nereidv1.WorkerHello
	admit := func() error {
		return identity.CheckIncarnation(conn.Context(), hello.GetWorkerId(), hello.GetWorker(), s.config.Owners)
	}
	if err := s.greet(t, conn, &hello, admit); err != nil {
		return link.Status(link.Cause(err))
	}
	held := codec.HeldOf(&hello)
	e := s.newWorkerEnd(t, conn, hello.GetWorker(), held)
	log := s.config.Log.With(zap.String("worker", hello.GetWorkerId()), zap.Uint64("incarnation", e.incarnation), zap.String("release", hello.GetRelease()))
	s.workers.enter(e)
	defer s.workers.leave(e)
	log.Info("a worker has connected", zap.Int("running", len(held.Running)))
	t.backend.Attach(e.incarnation, held, e)
	err = s.run(conn.Context(), &e.end, e.reader, e.receive)
	t.backend.Disconnect(e.incarnation, e.stop())
	log.Info("a worker's stream has ended", zap.Error(err))
	return link.Status(err)
}

func (s *Server) newWorkerEnd(t *term, conn link.Conn, incarnation uint64, held infer.Held) *workerEnd {
	e := &workerEnd{
		end:    end{incarnation: incarnation, term: t, link: link.New(conn), over: make(chan struct{})},
		server: s, reader: codec.NewReader(s.config.Tensors), under: make(map[infer.BatchID]*sentBatch),
	}
	for _, r := range held.Running {
		e.under[r.Batch] = &sentBatch{open: len(r.Units), free: r.InstanceFree}
	}
	return e
}

// stop returns the batches in flight, with the requests of units that have not ended. Later batches are returned
// immediately.
func (e *workerEnd) stop() []*infer.Batch {
	e.mu.Lock()
	defer e.mu.Unlock()
	under := make([]*infer.Batch, 0, len(e.under))
	for _, b := range e.under {
		switch {
		case b.Batch == nil:
		case b.ended == nil:
			under = append(under, b.Batch)
		default:
			under = append(under, b.Only(func(i int) bool { return !b.ended[i] }))
		}
	}
	e.under = nil
	return under
}

// Execute sends a batch. It retains the references to the requests until their units have ended, in case the worker
// never receives the batch.
func (e *workerEnd) Execute(b *infer.Batch) {
	for _, r := range b.Requests {
		if g := e.server.gateways.get(r.Work.Request.Origin); g != nil {
			g.placed(r.Work, e.incarnation)
		}
	}
	if err := e.begin(b); err != nil {
		e.link.Close(err) // unless it has ended
		e.term.backend.Return(b, errGone)
	}
}

// begin sends a batch and records it. It holds the lock meanwhile: once the batch ends it belongs to the backend,
// which must not happen while it is still being read.
func (e *workerEnd) begin(b *infer.Batch) error {
	now := e.server.config.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.under == nil {
		return errGone
	}
	err := e.link.Write(func(w *codec.Writer) error { return w.Batch(b, now) })
	if err == nil {
		e.under[b.ID] = &sentBatch{Batch: b, open: len(b.Requests)}
	}
	return err
}

// Cancel says that nobody waits for one request of a batch any more.
func (e *workerEnd) Cancel(batch infer.BatchID, id infer.RequestID) {
	e.sent(e.link.Write(func(w *codec.Writer) error { return w.CancelUnit(batch, id) }))
}

// Retired says that an instance receives no more batches.
func (e *workerEnd) Retired(id infer.InstanceID) {
	e.sent(e.link.Write(func(w *codec.Writer) error {
		return w.Message(codec.WorkRetired, &nereidv1.Retired{Instance: codec.Instance(id)})
	}))
}

// left says that the scheduler has forgotten the worker.
func (e *workerEnd) left() {
	e.sent(e.link.Write(func(w *codec.Writer) error { return w.Message(codec.WorkLeft, &nereidv1.Left{}) }))
}

// sent ends the stream if something could not be sent: on its next stream the worker reports again what it has.
func (e *workerEnd) sent(err error) {
	if err != nil {
		e.link.Close(err)
	}
}

func (e *workerEnd) receive(member protowire.Number, b codec.Body) error {
	switch member {
	case codec.WorkerInstanceFree:
		f, err := e.reader.InstanceFree(b, e.server.config.Clock.Now())
		if err != nil {
			return err
		}
		return e.instanceFree(f)
	case codec.WorkerUnitDone:
		d, err := e.reader.UnitDone(b, e.server.config.Clock.Now())
		if err != nil {
			return err
		}
		return e.unitDone(d)
	case codec.WorkerGrant:
		var m nereidv1.Grant
		return e.cold(b, &m, func() error { return e.grant(codec.GrantOf(&m)) })
	case codec.WorkerRetire:
		var m nereidv1.Retire
		return e.cold(b, &m, func() error { return e.retire(codec.InstanceOf(m.GetInstance())) })
	case codec.WorkerBatchReturned:
		var m nereidv1.BatchReturned
		return e.cold(b, &m, func() error { return e.returned(&m) })
	case codec.WorkerLeave:
		e.term.backend.Detach(e.incarnation)
		return nil
	case codec.WorkerDrain:
		return nil // the retirements that follow say it for each instance
	}
	return errNoMessage
}

// cold reads a message of a rare kind and calls do.
func (e *workerEnd) cold(b codec.Body, m proto.Message, do func() error) error {
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

// instanceFree ends those units of a batch that have ended. A request that will run again goes back to the backend.
func (e *workerEnd) instanceFree(f *infer.InstanceFree) error {
	if f.Instance.Worker != e.incarnation {
		return errForeign
	}
	b := e.take(f.Batch, func(b *sentBatch) bool {
		return !b.free && (b.Batch == nil || b.Instance == f.Instance && len(b.Requests) == len(f.Outcomes))
	})
	if b == nil {
		return errUnasked
	}
	more := slices.Contains(f.Ends, infer.UnitMore)
	if more {
		b.free, b.ended = true, make([]bool, len(f.Ends))
	}
	for i := range f.Outcomes {
		if more && f.Ends[i] == infer.UnitMore {
			continue
		}
		b.open--
		if more {
			b.ended[i] = true
		}
		switch {
		case b.Batch == nil:
		case len(f.Ends) > 0 && f.Ends[i] == infer.UnitAgain:
			f.Again = append(f.Again, b.Requests[i])
		default:
			b.Requests[i].Release()
		}
	}
	if more {
		e.putBack(f.Batch, b)
	}
	e.term.backend.InstanceFree(f)
	return nil
}

// unitDone ends a unit whose instance is free.
func (e *workerEnd) unitDone(d infer.UnitDone) error {
	if d.Instance.Worker != e.incarnation {
		return errForeign
	}
	b := e.take(d.Batch, func(b *sentBatch) bool { return b.free })
	if b == nil {
		return errUnasked
	}
	if b.Batch != nil {
		i := slices.IndexFunc(b.Requests, func(r *infer.Request) bool { return r.Work.Unit() == d.Work.Unit() })
		if i < 0 || b.ended[i] {
			return errUnasked
		}
		b.ended[i] = true
		b.Requests[i].Release()
	}
	if b.open--; b.open > 0 {
		e.putBack(d.Batch, b)
	}
	e.term.backend.UnitDone(d)
	return nil
}

// returned returns a batch without the requests that the worker has answered.
func (e *workerEnd) returned(m *nereidv1.BatchReturned) error {
	back := make(map[infer.RequestID]bool, len(m.GetRequests()))
	for _, id := range m.GetRequests() {
		back[infer.RequestID{Origin: id.GetOrigin(), Number: id.GetNumber()}] = true
	}
	b := e.take(infer.BatchID{Epoch: m.GetEpoch(), Number: m.GetBatch()}, func(b *sentBatch) bool {
		return b.Batch != nil && !b.free && names(b.Batch, back)
	})
	if b == nil {
		return errUnasked
	}
	rest := b.Only(func(i int) bool { return back[b.Requests[i].Work.Request] })
	for _, r := range b.Requests {
		if !back[r.Work.Request] {
			r.Release()
		}
	}
	e.term.backend.Return(rest, codec.ErrorOf(m.GetError()))
	return nil
}

// names reports whether the batch has each of the requests.
func names(b *infer.Batch, requests map[infer.RequestID]bool) bool {
	found := 0
	for _, r := range b.Requests {
		if requests[r.Work.Request] {
			found++
		}
	}
	return found == len(requests)
}

// take removes and returns a batch in flight if it fits; otherwise it returns nil.
func (e *workerEnd) take(id infer.BatchID, fits func(*sentBatch) bool) *sentBatch {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.under[id]
	if b == nil || !fits(b) {
		return nil
	}
	delete(e.under, id)
	return b
}

func (e *workerEnd) putBack(id infer.BatchID, b *sentBatch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.under != nil {
		e.under[id] = b
	}
}
