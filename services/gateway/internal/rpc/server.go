package rpc

import (
	"cmp"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Clock converts a context's deadline to the clock of requests; [mono.System]
// is one.
type Clock interface {
	At(time.Time) mono.Time
}

// Options configure the front end. Zero values other than Clock's are
// Triton's defaults.
type Options struct {
	path.Options
	// Clock is that of the engine. Required.
	Clock Clock
	// MaxMessageBytes bounds a received message, after decompression; 0 is
	// math.MaxInt32. A message is held in memory whole.
	MaxMessageBytes int
	// MaxStreams bounds the calls at a time on one connection; 0 is no bound.
	MaxStreams uint32
	// Workers is the number of goroutines kept for calls, so that their
	// stacks need not grow anew; 0 is 64. More calls than workers run too.
	Workers int
	// Keepalive says when the server pings and ends connections. Zero fields
	// mean 2 h between pings, 20 s for the response to one and no end by age.
	Keepalive keepalive.ServerParameters
	// PingInterval is the least time between the pings of a client that gets
	// no data; a client that exceeds it twice is disconnected. 0 is 5 min.
	PingInterval time.Duration
	// PingWithoutCalls lets clients ping while they have no call.
	PingWithoutCalls bool
	// Credentials are of the handshakes; plain text where there are none.
	Credentials credentials.TransportCredentials
	// StallTimeout is how long a client may take nothing of a response; of larger
	// ones it takes 1 MiB within that time, or its connection is closed. A minute
	// if 0.
	StallTimeout time.Duration
	// Compress sends the responses of inferences as gzip to clients that accept
	// it. Without it a response is compressed as its request was.
	Compress bool
	// Cluster returns the cluster's state; without it there is no such call.
	Cluster Cluster
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

// defaultStallTimeout bounds the time without progress.
const defaultStallTimeout = time.Minute

// keptWorkers is well above the cores, since a worker waits with its call: a
// call that finds none free starts a goroutine, whose stack grows by copying.
const keptWorkers = 64

// New makes a gRPC server for a gateway, with extra options. Unlike
// Triton it has reflection, for tools such as grpcurl.
func New(gateway *core.Gateway, o Options, extra ...grpc.ServerOption) *grpc.Server {
	s := newService(gateway, o)
	server := grpc.NewServer(append(s.serverOptions(o), extra...)...)
	r := registrar{server, s}
	r.RegisterService(s.description(), s)
	grpc_health_v1.RegisterHealthServer(r, &health{gateway: gateway})
	if o.Cluster != nil {
		control.RegisterCluster(r, o.Cluster, func(err error) {
			if o.Log != nil {
				o.Log(nereidv1.ClusterService_Status_FullMethodName, err)
			}
		})
	}
	reflection.Register(r)
	return server
}

// serverOptions are the codec for inference messages and limits.
func (s *service) serverOptions(o Options) []grpc.ServerOption {
	limit := o.MaxMessageBytes
	if limit == 0 {
		limit = math.MaxInt32
	}
	limit = int(o.Budget.Cap(int64(limit)))
	streams := o.MaxStreams
	if streams == 0 {
		streams = math.MaxUint32
	}
	workers := o.Workers
	if workers == 0 {
		workers = keptWorkers
	}
	handshakes := handshakes{
		TransportCredentials: o.Credentials, budget: o.Budget, timeout: cmp.Or(o.StallTimeout, defaultStallTimeout),
		stalled: func() { _ = s.path.Visible("", errs.New(errs.ResponseStalled, "")) },
	}
	if o.Credentials == nil {
		handshakes.TransportCredentials = insecure.NewCredentials()
	}
	return []grpc.ServerOption{
		grpc.Creds(handshakes),
		grpc.ForceServerCodecV2(newCodec(s.gateway.Pool(), o.Budget, limit)),
		experimental.BufferPool(new(buffers)),
		grpc.MaxRecvMsgSize(limit),
		grpc.MaxConcurrentStreams(streams),
		grpc.RPCDecompressor(gzipLater{}), //nolint:staticcheck // what replaces it registers for the whole process
		grpc.InTapHandle(opened),
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
