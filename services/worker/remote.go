package worker

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/plane/schedule"
	"github.com/nereid-serving/nereid/libs/plane/workers"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/attach"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
	"github.com/nereid-serving/nereid/services/worker/internal/gateways"
)

// RemoteDeps are what a [Remote] works with.
type RemoteDeps struct {
	// ID is the worker's; Release is for the others' logs.
	ID, Release string
	// Pool names the worker's pool.
	Pool string
	Bus  *bus.Bus
	// TLS is how the worker meets its scheduler; nil is plain text.
	TLS *tls.Config
	// Tensors is where the memory of tensors comes from, Arena what of it
	// gateways of the same host may read; nil is nothing.
	Tensors *tensor.Pool
	Arena   *shm.Arena
	Clock   mono.Clock
	// Metrics is where the worker's way registers its own.
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Remote is a worker's way to a scheduler and gateways in other processes.
type Remote struct {
	deps       RemoteDeps
	tensors    *export.Endpoint
	attachment *attach.Attachment
	batches    *batches.Table
	gateways   *control.Incarnations
	workers    *workers.Connector // with those from which something is fetched
}

// NewRemote makes one that connects to nobody before its parts run.
func NewRemote(d RemoteDeps) *Remote {
	r := &Remote{deps: d, batches: batches.New(), gateways: control.GatewayIncarnations(d.Bus)}
	r.tensors = export.NewEndpoint(export.Config{
		ID: d.ID, Release: d.Release, Arena: d.Arena, Pool: d.Tensors, Clock: d.Clock,
		Owners: identity.Owners{
			identity.Gateway: r.gateways.Owner,
			identity.Worker:  func(incarnation uint64) (string, bool) { return r.workers.Owner(incarnation) },
		},
		Lost:  func(gateway uint64) { r.attachment.Abandon(gateway) },
		Reach: func(worker uint64) { r.workers.Reach(worker) }, Idle: idle,
	})
	r.workers = workers.New(workers.Deps{
		Bus: d.Bus, Endpoint: r.tensors, Peer: r.worker, OnDemand: true, Lost: r.tensors.Gone, Log: d.Log,
	})
	r.attachment = attach.New(attach.Deps{
		Finder: control.NewFinder(d.Bus, control.PoolRole(d.Pool)), Clock: d.Clock, Lease: lease(), Log: d.Log, Dial: r.dial,
		Batches: r.batches, Fetch: r.tensors.FetchInputs, Respond: r.tensors.Respond,
	})
	promauto.With(d.Metrics).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_worker_kept_bytes", Help: "Outputs of ensembles' steps that stay at the worker for the steps behind them.",
	}, func() float64 { return float64(r.tensors.KeptBytes()) })
	promauto.With(d.Metrics).NewCounterFunc(prometheus.CounterOpts{
		Name: "nereid_worker_kept_responses_total", Help: "Responses of ensembles' steps of which outputs stayed at the worker.",
	}, func() float64 { return float64(r.tensors.Kept()) })
	promauto.With(d.Metrics).NewCounterFunc(prometheus.CounterOpts{
		Name: "nereid_worker_fetched_bytes_total", Help: "Bytes of inputs that came over streams from the processes that had them.",
	}, func() float64 { return float64(r.tensors.FetchedBytes()) })
	return r
}

// Scheduler leads to the scheduler that holds the worker's pool. Batches come
// when their inputs can be read.
func (r *Remote) Scheduler() infer.Scheduler { return introducing{r.attachment, r.tensors} }

// introducing has gateways know which incarnation the worker is.
type introducing struct {
	infer.Scheduler
	tensors *export.Endpoint
}

func (i introducing) Attach(worker uint64, held infer.Held, e infer.Executor) {
	i.tensors.Introduce(worker)
	i.Scheduler.Attach(worker, held, e)
}

// Batches is the worker's table: see [Deps].
func (r *Remote) Batches() *batches.Table { return r.batches }

// Responder brings responses to their gateways.
func (r *Remote) Responder() infer.Responder { return r.tensors }

// leaveReportTimeout bounds how long a worker that has ended waits for a scheduler to
// confirm it: longer than a standby takes to acquire the pool of one that has died.
const leaveReportTimeout = 3 * time.Second

// Settle waits until gateways have acknowledged the worker's answers, nobody reads what
// it keeps, and a scheduler has forgotten the worker: see [Deps]. Where an answer was
// lost, a gateway may ask for it again, so no scheduler may forget who has run it.
func (r *Remote) Settle(ctx context.Context) {
	left := r.tensors.Settle(ctx)
	if left.Responses > 0 {
		r.deps.Log.Warn("stopping before gateways have acknowledged all answers: the requests fail",
			zap.Int("answers", left.Responses), zap.Int64("bytes", left.Bytes))
	}
	if left.Responses > 0 || left.Dropped > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveReportTimeout)
	defer cancel()
	if !r.attachment.Leave(ctx) {
		r.deps.Log.Info("stopping without a scheduler that confirms it: the next one counts the worker as lost")
	}
}

// Calls brings what models ask of other models to gateways.
func (r *Remote) Calls() export.Caller { return r.tensors.Caller() }

// MayStart reports whether a batch that came at the given time may still start:
// see [Deps].
func (r *Remote) MayStart(accepted mono.Time) bool { return r.attachment.Fresh(accepted) }

// PipelinedBatches is how many batches an instance takes beyond those that it
// runs: see [Deps].
func (r *Remote) PipelinedBatches() int { return 3 }

// Register has a gRPC server, made with [link.ServerOptions], take the
// streams of gateways.
func (r *Remote) Register(s grpc.ServiceRegistrar) { r.tensors.Register(s) }

// Parts keep the session with the scheduler, and release what waits for gateways
// that are lost.
func (r *Remote) Parts() []lifecycle.Part {
	return []lifecycle.Part{
		{Name: "tensors", Run: func(ctx context.Context) error {
			<-ctx.Done()
			r.tensors.Close()
			return nil
		}},
		{Name: "gateways", Run: func(ctx context.Context) error {
			return gateways.Follow(ctx, r.deps.Bus, r.tensors, r.deps.Log)
		}},
		{Name: "identities", Run: r.gateways.Run},
		{Name: "workers", Run: r.workers.Run},
		{Name: "scheduler", Run: r.attachment.Run},
	}
}

// idle is how long a stream with another worker is kept without a fetch.
const idle = time.Minute

func (r *Remote) worker(address string) link.Peer {
	return link.Peer{Address: address, TLS: identity.Expect(r.deps.TLS, identity.Worker)}
}

func (r *Remote) dial(ctx context.Context, address string, worker uint64, held infer.Held, e infer.Executor) (attach.Session, error) {
	d := schedule.Dialler{
		Self:  schedule.Identity{ID: r.deps.ID, Incarnation: worker, Release: r.deps.Release},
		Clock: r.deps.Clock, Pool: r.deps.Tensors,
	}
	return d.Worker(ctx, link.Peer{Address: address, TLS: identity.Expect(r.deps.TLS, identity.Scheduler)}, held, e)
}

// lease is for how long a worker counts as alive without a sign.
func lease() time.Duration {
	for _, bucket := range bus.Buckets() {
		if bucket.Name == bus.Workers {
			return bucket.Lease
		}
	}
	return 0
}
