package gateway

import (
	"context"
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/region"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/plane/workers"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/dispatcher"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// RemoteDeps are the dependencies of a [Remote].
type RemoteDeps struct {
	// ID is the gateway's id. Peers log Release.
	ID, Release string
	Bus         *bus.Bus
	// TLS secures connections to the other services; nil means plain text.
	TLS *tls.Config
	// Pool is the memory pool of tensors. Arena is the part of it that workers on the same host may read; nil
	// means none.
	Pool  *tensor.Pool
	Arena *shm.Arena
	Clock mono.Clock
	// Requests is the gateway's table.
	Requests *Requests
	// Calls and Control serve the requests that models on workers make of other models.
	Calls   infer.Caller
	Control infer.Control
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Requests is the table of a gateway's requests in flight: see [requests.Table].
type Requests = requests.Table

// NewRequests makes the table that a gateway shares with its [Remote].
func NewRequests() *Requests { return requests.New(0) }

// Remote connects a gateway to schedulers and workers in other processes. It is a [Dispatcher] while its parts
// run.
type Remote struct {
	*dispatcher.Pools
	deps RemoteDeps
	// tensors is the gateway's end of the streams to workers. Its incarnation is set before registered is
	// closed.
	tensors    *export.Endpoint
	workers    *workers.Connector
	registered chan struct{}
	host       string // the machine: see [region.Host]
}

// NewRemote returns a Remote without connections. Its parts open them after [Remote.Register].
func NewRemote(d RemoteDeps) *Remote {
	r := &Remote{deps: d, registered: make(chan struct{}), host: region.Host()}
	r.Pools = dispatcher.NewPools(r.open, infer.DefaultPool)
	r.tensors = export.NewEndpoint(export.Config{
		ID: d.ID, Release: d.Release, Arena: d.Arena, Pool: d.Pool, Clock: d.Clock, Responder: d.Requests, Lent: d.Requests.Lent,
		Calls: d.Calls, Control: d.Control, Dropped: r.dropped,
	})
	d.Requests.OnOverdue(r.tensors.Arriving)
	r.workers = workers.New(workers.Deps{Bus: d.Bus, Endpoint: r.tensors, Peer: r.worker, Lost: r.lost, Back: d.Requests.Back, Log: d.Log})
	return r
}

// Register sets the gateway's incarnation, which identifies it to the other services. Call it once.
func (r *Remote) Register(incarnation uint64) {
	r.tensors.Introduce(incarnation)
	close(r.registered)
}

// Parts returns the parts that maintain a session with each pool's scheduler and a stream to each worker.
func (r *Remote) Parts() []lifecycle.Part {
	return []lifecycle.Part{{Name: "pools", Run: r.Pools.Run}, {Name: "workers", Run: r.follow}}
}

// open makes the dispatcher of a pool.
func (r *Remote) open(pool string) *dispatcher.Dispatcher {
	return dispatcher.New(dispatcher.Deps{
		Pool:   r.deps.Requests.NewPool(pool, requests.DefaultBounds(), r.deps.Clock, r.lend),
		Finder: control.NewFinder(r.deps.Bus, control.PoolRole(pool)), Dial: r.dial,
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"pool": pool}, r.deps.Metrics),
		Log:     r.deps.Log.With(zap.String("pool", pool)),
	})
}

// dial opens a session with a scheduler, once the gateway's incarnation is known.
func (r *Remote) dial(ctx context.Context, address string, met uint64, h schedule.GatewayHandler) (dispatcher.Session, error) {
	select {
	case <-r.registered:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d := schedule.Dialler{
		Self:  schedule.Identity{ID: r.deps.ID, Incarnation: r.tensors.Identity().Epoch, Release: r.deps.Release},
		Clock: r.deps.Clock, Pool: r.deps.Pool, Met: met,
	}
	return d.Gateway(ctx, link.Peer{Address: address, TLS: identity.Expect(r.deps.TLS, identity.Scheduler)}, h)
}

// lend exports large inputs: they stay here until a worker fetches them.
func (r *Remote) lend(inputs []infer.Tensor, holder uint64) (carried []infer.Tensor, end func()) {
	carried, lease := r.tensors.Exports.Lend(inputs, holder)
	if lease.Empty() {
		return carried, nil
	}
	return carried, lease.Release
}

// Cancel reports that nobody waits for a request any more.
func (r *Remote) Cancel(id infer.RequestID) { r.deps.Requests.Cancel(id) }

func (r *Remote) worker(address string) link.Peer {
	return link.Peer{Address: address, TLS: identity.Expect(r.deps.TLS, identity.Worker)}
}

// follow maintains a stream to each worker.
func (r *Remote) follow(ctx context.Context) error {
	select {
	case <-r.registered:
	case <-ctx.Done():
		return nil
	}
	defer r.tensors.Close()
	return r.workers.Run(ctx)
}

// lost handles the loss of a worker.
func (r *Remote) lost(worker uint64) {
	r.tensors.Gone(worker)
	if n := r.deps.Requests.Lost(worker); n > 0 {
		r.deps.Log.Warn("a worker is gone with requests", zap.Uint64("incarnation", worker), zap.Int("requests", n))
	}
}

// dropped handles a worker's report that it dropped answers because it took the gateway for lost.
func (r *Remote) dropped(worker uint64, at mono.Time) {
	if n := r.deps.Requests.Dropped(worker, at); n > 0 {
		r.deps.Log.Warn("a worker has dropped answers, since the gateway was gone or had no stream for long",
			zap.Uint64("incarnation", worker), zap.Int("requests", n))
	}
}

// Connected returns a channel that is closed when the current stream to a worker's incarnation ends, or nil if
// there is none.
func (r *Remote) Connected(worker uint64) <-chan struct{} { return r.workers.Connected(worker) }

// There implements [GPUs].
func (r *Remote) There() bool {
	return len(r.gpus(func(*nereidv1.WorkerDevice) bool { return true })) > 0
}

// Workers implements [GPUs].
func (r *Remote) Workers(number int32) []link.Peer {
	return r.gpus(func(d *nereidv1.WorkerDevice) bool { return d.GetNumber() == number })
}

// gpus returns the workers on this machine that have a matching GPU.
func (r *Remote) gpus(match func(*nereidv1.WorkerDevice) bool) []link.Peer {
	return r.workers.Peers(func(d *nereidv1.WorkerDevice) bool {
		return d.GetKind() == nereidv1.DeviceKind_DEVICE_KIND_GPU && d.GetHost() != "" && d.GetHost() == r.host && match(d)
	})
}
