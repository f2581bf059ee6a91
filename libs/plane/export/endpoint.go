package export

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Config configures an [Endpoint].
type Config struct {
	// ID names the process; Release is for logs.
	ID, Release string
	// Arena is the memory that processes of the same host may map; nil is none.
	Arena *shm.Arena
	// Pool provides memory for tensors from other processes.
	Pool  *tensor.Pool
	Clock mono.Clock
	// Owners say whose incarnations are, so that a caller speaks as the process of
	// its certificate alone; nil know none.
	Owners identity.Owners
	// Responder gets the responses to this process's requests; with nil a peer that
	// sends one is refused. Lent returns the inputs of a request as they were named,
	// or none once it has ended.
	Responder infer.Responder
	Lent      func(infer.RequestID) []infer.Tensor
	// Lost is called when a process is lost: nobody accepts responses to its requests any more.
	// It may be nil.
	Lost func(incarnation uint64)
	// Dropped is called, again at each stream, with a process that has dropped responses for
	// this one and the time of the last. It may be nil.
	Dropped func(incarnation uint64, at mono.Time)
	// Calls and Control accept requests of workers' models; with nil such a peer is refused.
	// Calls does not block; Control may.
	Calls   infer.Caller
	Control infer.Control
	// Reach is called with a process without a stream, when a fetch needs one; it does not
	// block. With nil the fetch waits for a stream.
	Reach func(incarnation uint64)
	// Idle is how long a stream that this process has begun is kept without a
	// fetch; 0 is for good.
	Idle time.Duration
}

// Endpoint is a process's end of its exchanges with all others: it exports tensors, fetches
// them, and passes responses on. It is an [infer.Responder] that brings each response to the
// process that made the request. It is safe for concurrent use.
type Endpoint struct {
	nereidv1.UnimplementedTensorServiceServer
	// Exports are the tensors that others may read.
	Exports *Exports
	config  Config

	kept    atomic.Int64  // bytes of outputs
	keeps   atomic.Uint64 // responses
	fetched atomic.Uint64 // bytes of tensors
	dropped atomic.Uint64 // responses that their processes have not taken

	mu          sync.Mutex
	incarnation uint64           // 0 before it is known; guarded by mu
	peers       map[uint64]*peer // by incarnation; guarded by mu
	drops       drops            // guarded by mu
	closed      bool             // guarded by mu
}

var _ infer.Responder = (*Endpoint)(nil)

// NewEndpoint makes an endpoint without streams.
func NewEndpoint(c Config) *Endpoint {
	return &Endpoint{Exports: NewExports(c.Arena), config: c, peers: make(map[uint64]*peer)}
}

// Introduce sets the incarnation of the process; there are no streams before.
func (e *Endpoint) Introduce(incarnation uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.incarnation = incarnation
}

// Identity is who the process is to others.
func (e *Endpoint) Identity() Identity {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Identity{ID: e.config.ID, Epoch: e.incarnation, Release: e.config.Release}
}

// Register makes s serve the streams of others.
func (e *Endpoint) Register(s grpc.ServiceRegistrar) { nereidv1.RegisterTensorServiceServer(s, e) }

// Respond takes ownership of a response and sends it to the process that made its request, now
// or when that has a stream.
func (e *Endpoint) Respond(r *infer.Response) {
	for p := e.peer(r.Work.Request.Origin); p != nil; p = e.peer(r.Work.Request.Origin) {
		if p.respond(r) {
			return
		}
		e.remove(p) // it has just been dropped: the response is for its successor
	}
	e.dropped.Add(1)
	r.Release()
}

// KeptBytes returns the size of the outputs that this process retains for their next readers.
func (e *Endpoint) KeptBytes() int64 { return e.kept.Load() }

// Kept returns the number of responses with retained outputs so far.
func (e *Endpoint) Kept() uint64 { return e.keeps.Load() }

// FetchedBytes returns the bytes of tensors fetched over streams so far.
func (e *Endpoint) FetchedBytes() uint64 { return e.fetched.Load() }

// Gone says that a process's lease has ended. When its stream has ended too, data that waits
// for it is released, and fetches from it fail.
func (e *Endpoint) Gone(incarnation uint64) {
	if p := e.known(incarnation); p != nil {
		p.setLeased(false)
	}
}

// Back says that a process holds its lease again: it was only cut off from the store.
func (e *Endpoint) Back(incarnation uint64) {
	if p := e.known(incarnation); p != nil {
		p.setLeased(true)
	}
}

// Waits reports whether a fetch from a process waits.
func (e *Endpoint) Waits(incarnation uint64) bool {
	p := e.known(incarnation)
	return p != nil && p.waits()
}

// Close releases all that waits, for good.
func (e *Endpoint) Close() {
	e.mu.Lock()
	peers := e.peers
	e.peers, e.closed = nil, true
	e.mu.Unlock()
	for _, p := range peers {
		p.close(errStopped())
	}
}

func errStopped() error {
	return errs.New(errs.Draining, "the process does not exchange tensors: it starts or stops")
}

// peer returns the peer of an incarnation; nil after Close.
func (e *Endpoint) peer(incarnation uint64) *peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[incarnation]
	if p == nil && !e.closed {
		p = newPeer(e, incarnation)
		e.peers[incarnation] = p
	}
	return p
}

func (e *Endpoint) known(incarnation uint64) *peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[incarnation]
}

// drop forgets a peer that is gone. It may come back: then its hello is answered with
// when its responses were dropped.
func (e *Endpoint) drop(p *peer) {
	p.end()
	e.remove(p)
	p.close(errs.New(errs.TransferFailed, "the process that holds the tensor is gone: send the request again"))
	if e.config.Lost != nil {
		e.config.Lost(p.incarnation)
	}
}

// remove takes a peer that has ended out of the table, after which another begins.
func (e *Endpoint) remove(p *peer) {
	undelivered := p.undelivered()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.peers[p.incarnation] != p {
		return
	}
	delete(e.peers, p.incarnation)
	if undelivered > 0 {
		e.drops.note(p.incarnation, e.config.Clock.Now())
	}
}

// droppedFor returns when responses for a process were last dropped; 0 is never.
func (e *Endpoint) droppedFor(incarnation uint64) mono.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.drops.at[incarnation]
}

// Exchange serves a stream that another process has begun.
func (e *Endpoint) Exchange(s grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	return link.Status(e.exchange(s))
}

func (e *Endpoint) exchange(conn grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	theirs := new(nereidv1.TensorHello)
	if err := link.ExpectHello(conn.Context(), conn, theirs); err != nil {
		return err
	}
	if err := link.CheckProtocol(theirs.GetId(), theirs.GetProtocol()); err != nil {
		return err
	}
	if err := identity.CheckIncarnation(conn.Context(), theirs.GetId(), theirs.GetEpoch(), e.config.Owners); err != nil {
		return err
	}
	mine, p := e.Identity(), e.peer(theirs.GetEpoch())
	if p == nil || mine.Epoch == 0 {
		return errStopped()
	}
	hello := e.hello(new(Progress))
	if at := e.droppedFor(p.incarnation); at != 0 {
		ago := uint64(e.config.Clock.Now().Sub(at))
		hello.GetHello().DroppedNs = &ago
	}
	if err := link.SendHello(conn, hello); err != nil {
		return link.Cause(err)
	}
	s, err := e.newStream(conn)
	if err != nil {
		return err
	}
	if err := p.serve(s, theirs); err != nil {
		return err
	}
	return p.run(conn.Context(), s)
}
