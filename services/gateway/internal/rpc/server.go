package rpc

import (
	"cmp"
	"math"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/transport"
	"github.com/nereid-serving/nereid/services/gateway/internal/turns"
)

// Clock converts a context's deadline to the clock of requests; [mono.System] implements it.
type Clock interface {
	At(time.Time) mono.Time
}

// Options configure the front end. Zero values of all fields but Clock select Triton's defaults.
type Options struct {
	path.Options
	// Clock is the engine's clock. Required.
	Clock Clock
	// MaxMessageBytes bounds a received message, after decompression; 0 means math.MaxInt32. A message is held
	// in memory as a whole.
	MaxMessageBytes int
	// MaxStreams bounds the concurrent calls on one connection; 0 means no bound.
	MaxStreams uint32
	// Workers is the number of goroutines that are retained for calls, so that their stacks need not grow
	// again; 0 means 64. It does not limit the number of calls.
	Workers int
	// Keepalive sets when the server pings and ends connections. Zero fields mean 2 h between pings, 20 s to
	// respond to one, and no end by age.
	Keepalive keepalive.ServerParameters
	// Pings bounds the pings of clients.
	Pings Pings
	// Credentials perform the handshakes; nil means plain text.
	Credentials credentials.TransportCredentials
	// StallTimeout is the time within which a client must send or read 64 KiB of a message, or the rest of it;
	// otherwise the call is reset. 0 means a minute.
	StallTimeout time.Duration
	// Closed is called for each connection that is closed because of its client's behavior. It may be nil.
	Closed func(peer net.Addr, cause *errs.Error)
	// Turns are the turns for connections whose calls are not served. It may be nil.
	Turns *turns.Turns
	// Compress sends the responses of inferences as gzip to clients that accept it. Without it a response is
	// compressed as its request was.
	Compress bool
	// Cluster returns the cluster's state. If nil, the server does not offer that call.
	Cluster Cluster
}

// Pings says how often clients may ping.
type Pings = transport.Pings

// Flow-control windows and the write buffer of a connection, in bytes. Tensors of hundreds of KiB reach the
// server without waiting for window updates; for small messages the sizes make no measurable difference. Larger
// buffers would not fit in the processor's cache.
const (
	streamWindow     = 2 << 20
	connectionWindow = 8 << 20
	writeBuffer      = 64 << 10
)

// maxHeaderBytes bounds the headers of a call, counting 32 bytes of overhead for each field. gRPC's servers in
// C++ have the same limit.
const maxHeaderBytes = 16 << 10

// defaultStallTimeout bounds the time without progress.
const defaultStallTimeout = time.Minute

// keptWorkers is well above the number of cores, since a worker waits with its call. A call that finds no free
// worker starts a goroutine, whose stack grows by copying.
const keptWorkers = 64

// New returns a gRPC server for a gateway, with extra options. Unlike Triton's it has reflection, for tools
// such as grpcurl.
func New(gateway *core.Gateway, o Options, extra ...grpc.ServerOption) *grpc.Server {
	s := newService(gateway, o)
	server := grpc.NewServer(append(s.serverOptions(o), extra...)...)
	r := registrar{server, s}
	r.RegisterService(s.description(), s)
	grpc_health_v1.RegisterHealthServer(r, &health{gateway: gateway})
	if o.Cluster != nil {
		control.RegisterCluster(r, seenCluster{o.Cluster}, func(err error) {
			if o.Log != nil {
				o.Log(nereidv1.ClusterService_Status_FullMethodName, err)
			}
		})
	}
	reflection.Register(r)
	return server
}

// serverOptions returns the codec for inference messages and the limits.
func (s *service) serverOptions(o Options) []grpc.ServerOption {
	limit := o.MaxMessageBytes
	if limit == 0 {
		limit = math.MaxInt32
	}
	limit = int(o.Budget.Cap(copies*int64(limit)) / copies)
	streams := o.MaxStreams
	if streams == 0 {
		streams = math.MaxUint32
	}
	workers := o.Workers
	if workers == 0 {
		workers = keptWorkers
	}
	stallTimeout := cmp.Or(o.StallTimeout, defaultStallTimeout)
	handshakes := handshakes{TransportCredentials: o.Credentials, connections: transport.NewConnections(transport.Options{
		Budget: o.Budget, Turns: o.Turns, StallTimeout: stallTimeout, Pings: o.Pings,
		Reset: func(cause *errs.Error) *status.Status { return status.Convert(s.status("", cause)) },
		Closed: func(peer net.Addr, cause *errs.Error) {
			_ = s.path.Visible("", cause)
			if o.Closed != nil {
				o.Closed(peer, cause)
			}
		},
	})}
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
		grpc.InTapHandle(s.opened),
		grpc.StatsHandler(handlers{}),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.NumStreamWorkers(uint32(workers)),
		grpc.WaitForHandlers(true),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(0), // the connection has its own buffers
		grpc.WriteBufferSize(writeBuffer),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(stallTimeout), // of the handshake
		grpc.KeepaliveParams(o.Keepalive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 1, PermitWithoutStream: true, // the connection counts pings itself
		}),
	}
}
