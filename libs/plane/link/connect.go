package link

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nereid-serving/nereid/libs/identity"
)

const (
	// maxEnvelope limits the size of a received gRPC message.
	maxEnvelope = 1 << 30
	// connectTimeout limits one attempt to connect, with TLS and the first frames; reachTimeout the part of it that
	// reaches the peer's host, which may have vanished.
	connectTimeout, reachTimeout = 5 * time.Second, 2 * time.Second
	// window is how many bytes gRPC lets a peer send ahead: at least the credit that streams grant, which then is the
	// limit for a peer. A fixed window also keeps gRPC from measuring the connection with a ping, and an answer to
	// it, for almost every message of an idle stream.
	window = 8 << 20
)

// Peer is the address of another service and how to reach it.
type Peer struct {
	// Address is host:port or unix:PATH.
	Address string
	// TLS is nil for a connection without TLS.
	TLS *tls.Config
}

// Connect returns the connection of one stream, which is closed with the stream. It connects when the stream is
// opened.
func Connect(p Peer) (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if p.TLS != nil {
		secure = credentials.NewTLS(p.TLS)
	}
	return grpc.NewClient("passthrough:///"+p.Address,
		grpc.WithTransportCredentials(secure),
		grpc.WithContextDialer(dial),
		grpc.WithAuthority(authority(p.Address)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: patience}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(maxEnvelope), grpc.MaxCallSendMsgSize(maxEnvelope)),
	)
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	d := net.Dialer{Timeout: reachTimeout}
	return d.DialContext(ctx, network, address)
}

// authority returns the name that the server's certificate must have.
func authority(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return "localhost"
	}
	return address
}

// ServerOptions returns the options of a gRPC server for streams; calls of other services may share it. config is nil
// for a server without TLS. With TLS, callers may only make the calls of their role, and log records whom the server
// refuses: see [identity.ServerOptions].
func ServerOptions(config *tls.Config, log *zap.Logger) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxEnvelope), grpc.MaxSendMsgSize(maxEnvelope),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Second, Timeout: patience}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
		options = append(options, identity.ServerOptions(log)...)
	}
	return options
}
