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

// RemoteDeps are the dependencies of a [Remote].
type RemoteDeps struct {
	// ID is the worker's; Release is for the logs of other services.
	ID, Release string
	// Pool names the worker's pool.
	Pool string
	Bus  *bus.Bus
	// TLS is how the worker connects to its scheduler; nil is plain text.
	TLS *tls.Config
	// Tensors provides the memory of tensors. Arena is the part of it that gateways of the same host may read; nil is
	// none.
	Tensors *tensor.Pool
	Arena   *shm.Arena
	Clock   mono.Clock
	// Metrics is where the worker's connections register their metrics.
	Metrics prometheus.Registerer
	Log     *zap.Logger
}

// Remote connects a worker to a scheduler and gateways in other processes.
type Remote struct {
	deps       RemoteDeps
	tensors    *export.Endpoint
	attachment *attach.Attachment
	batches    *batches.Table
	gateways   *control.Incarnations
	workers    *workers.Connector // to those from which something is fetched
}

// NewRemote returns a Remote that connects to nobody until its parts run.
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

// Scheduler returns the scheduler that leads the worker's pool. Batches arrive once their inputs can be read.
func (r *Remote) Scheduler() infer.Scheduler { return introducing{r.attachment, r.tensors} }

// introducing tells gateways the worker's incarnation.
type introducing struct {
	infer.Scheduler
	tensors *export.Endpoint
}

func (i introducing) Attach(worker uint64, held infer.Held, e infer.Executor) {
	i.tensors.Introduce(worker)
	i.Scheduler.Attach(worker, held, e)
}

// Batches returns the worker's table: see [Deps].
func (r *Remote) Batches() *batches.Table { return r.batches }

// Responder sends responses to their gateways.
func (r *Remote) Responder() infer.Responder { return r.tensors }

// leaveReportTimeout limits how long a worker that has ended waits for a scheduler to confirm it: longer than a
// standby takes to acquire the pool of a scheduler that has died.
const leaveReportTimeout = 3 * time.Second

// Settle waits until gateways have acknowledged the worker's answers, nobody reads what it retains, and a scheduler
// has forgotten the worker: see [Deps]. If an answer was lost, a gateway may ask for it again, so no scheduler may
// forget who ran the request.
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

// Calls sends models' calls of other models to gateways.
func (r *Remote) Calls() export.Caller { return r.tensors.Caller() }

// MayStart reports whether a batch that came at the given time may still start:
// see [Deps].
func (r *Remote) MayStart(accepted mono.Time) bool { return r.attachment.Fresh(accepted) }

// PipelinedBatches returns how many batches an instance accepts beyond those that it runs: see [Deps].
func (r *Remote) PipelinedBatches() int { return 3 }

// Register registers the service for gateways' streams with a gRPC server made with [link.ServerOptions].
func (r *Remote) Register(s grpc.ServiceRegistrar) { r.tensors.Register(s) }

// Parts maintain the session with the scheduler, and release what waits for lost gateways.
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

// idle is how long a stream with another worker is kept open without a fetch.
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

// lease returns how long a worker counts as alive without renewing its lease.
func lease() time.Duration {
	for _, bucket := range bus.Buckets() {
		if bucket.Name == bus.Workers {
			return bucket.Lease
		}
	}
	return 0
}
