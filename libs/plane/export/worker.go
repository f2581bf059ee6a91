package export

import (
	"sync"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// WorkerConfig is what a worker's end works with. Arena may be nil.
type WorkerConfig struct {
	// ID names the worker; Release is for logs.
	ID, Release string
	// Arena is the memory that gateways may map.
	Arena *shm.Arena
	// Pool is where fetched inputs go.
	Pool  *tensor.Pool
	Clock mono.Clock
	// GatewayOf says whose incarnations are, so that a gateway whose certificate
	// is one process's speaks as that process alone; nil knows none.
	GatewayOf identity.Owner
}

// Worker is a worker's end of its exchanges with all gateways. It is an
// [infer.Responder] that brings each response to the gateway that made the
// request, and safe for concurrent use.
type Worker struct {
	nereidv1.UnimplementedTensorServiceServer
	config WorkerConfig

	mu     sync.Mutex
	epoch  uint64                  // the worker's incarnation, 0 before it is known; guarded by mu
	peers  map[uint64]*destination // by the gateway's incarnation; guarded by mu
	closed bool                    // guarded by mu
}

var _ infer.Responder = (*Worker)(nil)

// NewWorker makes a worker's end without streams.
func NewWorker(c WorkerConfig) *Worker {
	return &Worker{config: c, peers: make(map[uint64]*destination)}
}

// Introduce says which incarnation the worker is; streams are refused before.
func (w *Worker) Introduce(epoch uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epoch = epoch
}

// Register makes s serve the worker's streams.
func (w *Worker) Register(s grpc.ServiceRegistrar) { nereidv1.RegisterTensorServiceServer(s, w) }

// Respond takes a response over and brings it to the gateway of its request,
// now or when that has a stream.
func (w *Worker) Respond(r *infer.Response) {
	d := w.destination(r.Work.Request.Origin)
	if d == nil {
		r.Release()
		return
	}
	d.respond(r)
}

// Gone says that a gateway's lease has ended. What waits for it is released,
// when its stream has ended too.
func (w *Worker) Gone(gateway uint64) {
	w.mu.Lock()
	d := w.peers[gateway]
	w.mu.Unlock()
	if d != nil {
		d.gone()
	}
}

// Back says that a gateway holds its lease again: it was cut off from the store
// alone.
func (w *Worker) Back(gateway uint64) {
	w.mu.Lock()
	d := w.peers[gateway]
	w.mu.Unlock()
	if d != nil {
		d.back()
	}
}

// drop forgets a gateway.
func (w *Worker) drop(d *destination) {
	w.mu.Lock()
	if w.peers[d.gateway] == d {
		delete(w.peers, d.gateway)
	}
	w.mu.Unlock()
	d.end()
}

// Close releases all that waits, for good.
func (w *Worker) Close() {
	w.mu.Lock()
	peers := w.peers
	w.peers, w.closed = nil, true
	w.mu.Unlock()
	for _, d := range peers {
		d.end()
	}
}

// destination returns a gateway's; nil after Close.
func (w *Worker) destination(gateway uint64) *destination {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.peers[gateway]
	if d == nil && !w.closed {
		d = newDestination(w, gateway)
		w.peers[gateway] = d
	}
	return d
}

// read brings the bytes of a gateway's slot. It calls done once, at once or
// later, from any goroutine, with a local reference that becomes done's. After
// the returned function was called done may still come.
func (w *Worker) read(named tensor.Ref, done func(tensor.Ref, error)) (abandon func()) {
	d := w.destination(named.Holder)
	if d == nil {
		done(tensor.Ref{}, errStopped())
		return func() {}
	}
	return d.read(named, done)
}

// Exchange serves a gateway's stream.
func (w *Worker) Exchange(s grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	return link.Status(w.exchange(s))
}

func (w *Worker) exchange(s grpc.BidiStreamingServer[nereidv1.TensorEnvelope, nereidv1.TensorEnvelope]) error {
	theirs := new(nereidv1.TensorHello)
	if err := link.ExpectHello(s.Context(), s, theirs); err != nil {
		return err
	}
	if err := link.CheckProtocol(theirs.GetId(), theirs.GetProtocol()); err != nil {
		return err
	}
	if err := identity.CheckIncarnation(s.Context(), theirs.GetId(), theirs.GetEpoch(), w.config.GatewayOf); err != nil {
		return err
	}
	w.mu.Lock()
	mine := Identity{ID: w.config.ID, Epoch: w.epoch, Release: w.config.Release}
	w.mu.Unlock()
	d := w.destination(theirs.GetEpoch())
	if d == nil || mine.Epoch == 0 {
		return errStopped()
	}
	if err := link.SendHello(s, &nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: hello(mine)}}); err != nil {
		return link.Cause(err)
	}
	link := link.New(s)
	if err := announce(link, w.config.Arena); err != nil {
		return err
	}
	return d.run(s.Context(), link, theirs)
}
