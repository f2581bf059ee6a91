package rpc

import (
	"context"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/remote/control"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Engine answers the calls; [core.Gateway] is one.
type Engine interface {
	Live() bool
	Ready() bool
	ModelReady(model, version string) (bool, error)
	Server() core.ServerInfo
	Snapshot() *core.Snapshot
	Metadata(model, version string) (core.Metadata, error)
	ModelConfig(model, version string) (*modelconfig.Config, error)
	Statistics(ctx context.Context, model, version string) ([]core.ModelStatistics, error)
	Index(readyOnly bool) []core.IndexEntry
	LoadModel(context.Context, core.LoadRequest) error
	UnloadModel(ctx context.Context, model string, dependents bool) error
	NewRequest(*core.Version) *infer.Request
	// Infer takes the request over in every case; the caller releases the
	// response.
	Infer(context.Context, *core.Version, *infer.Request) (*infer.Response, *core.Version, error)
	Pool() *tensor.Pool
}

// Clock converts a context's deadline to the clock of requests; [mono.System]
// is one.
type Clock interface {
	At(time.Time) mono.Time
}

// Options configure the front end. Zero values other than Clock's are
// Triton's defaults.
type Options struct {
	// Clock is that of the engine. Required.
	Clock Clock
	// MaxMessageBytes bounds a received message, after decompression; 0 is
	// math.MaxInt32. A message is held in memory whole.
	MaxMessageBytes int
	// Budget bounds the bytes of all requests together. It may be nil.
	Budget *core.Budget
	// Workers is the number of goroutines kept for calls, so that their
	// stacks need not grow anew; 0 is 64. More calls than workers run too.
	Workers int
	// Keepalive says when the server pings and ends connections. Zero fields
	// mean 2 h between pings, 20 s to answer one and no end by age.
	Keepalive keepalive.ServerParameters
	// PingInterval is the least time between the pings of a client that gets
	// no data; a client that exceeds it twice is disconnected. 0 is 5 min.
	PingInterval time.Duration
	// PingWithoutCalls lets clients ping while they have no call.
	PingWithoutCalls bool
	// Compress sends the answers of inferences as gzip to clients that take
	// it. Without it an answer is compressed as its request was.
	Compress bool
	// Restricted are the APIs that need a header; nil restricts none.
	Restricted core.Restrictions
	// Cluster is asked by those who ask for the cluster's state; nil is not to
	// have that call.
	Cluster Cluster
	// Answered is told how long the answer of an inference took to encode, and
	// Failed why a call is answered with an error. They may be nil.
	Answered func(time.Duration)
	Failed   func(errs.Reason)
	// Log is told of errors whose text callers must not see: bugs. It may be
	// nil and is called from any goroutine.
	Log func(method string, err error)
}

// Flow-control windows and buffers of a connection, in bytes. Tensors of
// hundreds of KiB reach the server without waiting for window updates; for
// small messages the sizes make no measurable difference. The buffers are there
// as long as the connection; larger ones leave the processor's cache.
const (
	streamWindow     = 2 << 20
	connectionWindow = 8 << 20
	ioBuffer         = 64 << 10
)

// keptWorkers is well above the cores, since a worker waits with its call: a
// call that finds none free starts a goroutine, whose stack grows by copying.
const keptWorkers = 64

// New makes a gRPC server for engine, with extra added to [ServerOptions]. Tools
// such as grpcurl can ask it for its schema, which Triton does not tell.
func New(engine Engine, o Options, extra ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(ServerOptions(engine, o), extra...)...)
	Register(s, engine, o)
	reflection.Register(s)
	return s
}

// ServerOptions are the options of a server on which [Register] is called:
// the codec for inference messages, which Register relies on, and limits.
func ServerOptions(engine Engine, o Options) []grpc.ServerOption {
	limit := o.MaxMessageBytes
	if limit == 0 {
		limit = math.MaxInt32
	}
	limit = int(o.Budget.Most(int64(limit)))
	workers := o.Workers
	if workers == 0 {
		workers = keptWorkers
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(engine.Pool())),
		experimental.BufferPool(new(buffers)),
		grpc.MaxRecvMsgSize(limit),
		grpc.RPCDecompressor(deflate{limit: limit}), //nolint:staticcheck // what replaces it registers globally, at init
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.NumStreamWorkers(uint32(workers)),
		grpc.WaitForHandlers(true),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.KeepaliveParams(o.Keepalive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: o.PingInterval, PermitWithoutStream: o.PingWithoutCalls,
		}),
	}
}

// Register adds the inference, health and cluster services to a server that was made
// with [ServerOptions] and does not serve yet.
func Register(registrar grpc.ServiceRegistrar, engine Engine, o Options) {
	s := newService(engine, o)
	registrar.RegisterService(s.description(), s)
	grpc_health_v1.RegisterHealthServer(registrar, &health{engine: engine, service: s})
	if o.Cluster != nil {
		control.RegisterCluster(registrar, &cluster{service: s, asked: o.Cluster}, func(err error) {
			if s.log != nil {
				s.log(nereidv1.ClusterService_Status_FullMethodName, err)
			}
		})
	}
}
