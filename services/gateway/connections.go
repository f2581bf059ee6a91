package gateway

import (
	"errors"
	"math"
	"net"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/keepalive"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Connections configures the connections of clients. Times are in milliseconds.
type Connections struct {
	ReuseHTTP    config.Switch `name:"reuse-http-port" default:"false" group:"HTTP" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	HTTPRestrict []string      `name:"http-restricted-api" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"HTTP" help:"Answer calls of these APIs only with this header: health, metadata, inference, model-config, model-repository, statistics, shared-memory, trace, logging; repeat the flag for several headers."`

	MaxHTTP int `name:"http-max-connections" default:"16384" group:"HTTP" help:"Most connections that are open at a time; more are closed at once. 0 is no bound."`

	ReuseGRPC    config.Switch `name:"reuse-grpc-port" default:"false" group:"gRPC" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	GRPCRestrict []string      `name:"grpc-restricted-protocol" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"gRPC" help:"As --http-restricted-api; clients send the header as triton-grpc-protocol-HEADER."`
	SSL          config.Switch `name:"grpc-use-ssl" default:"false" group:"gRPC" help:"Speak TLS, with --grpc-server-cert and --grpc-server-key. Changed files are read again."`
	Mutual       config.Switch `name:"grpc-use-ssl-mutual" default:"false" group:"gRPC" help:"Speak TLS with clients alone whose certificate --grpc-root-cert has signed."`
	Certificate  string        `name:"grpc-server-cert" placeholder:"FILE" group:"gRPC" help:"The server's certificate, in PEM."`
	Key          string        `name:"grpc-server-key" placeholder:"FILE" group:"gRPC" help:"The private key of the certificate, in PEM."`
	Roots        string        `name:"grpc-root-cert" placeholder:"FILE" group:"gRPC" help:"Certificates that sign those of clients, in PEM."`
	Compression  string        `name:"grpc-infer-response-compression-level" default:"none" enum:"none,low,medium,high" group:"gRPC" help:"low, medium and high alike send the responses of inferences as gzip to clients that accept it; none compresses a response as its request was."`

	MaxGRPC    int `name:"grpc-max-connections" default:"4096" group:"gRPC" help:"Most connections that are open at a time; more are closed at once. 0 is no bound."`
	MaxStreams int `name:"grpc-max-concurrent-streams" default:"4096" group:"gRPC" help:"Most calls at a time on one connection, each stream of requests among them; clients wait with more."`

	PingTime     int64         `name:"grpc-keepalive-time" default:"7200000" group:"gRPC" help:"How long a connection is silent before the server pings the client, in milliseconds; 1000 at the least."`
	PingTimeout  int64         `name:"grpc-keepalive-timeout" default:"20000" group:"gRPC" help:"How long a ping may take to be answered before the connection is closed, in milliseconds."`
	PingIdle     config.Switch `name:"grpc-keepalive-permit-without-calls" default:"false" group:"gRPC" help:"Let clients ping connections without calls."`
	PingInterval int64         `name:"grpc-http2-min-recv-ping-interval-without-data" default:"300000" group:"gRPC" help:"Least time between the pings of a client, in milliseconds; one that exceeds it twice is disconnected."`
	MaxAge       int64         `name:"grpc-max-connection-age" default:"0" placeholder:"MS" group:"gRPC" help:"How old a connection gets, give or take a tenth, in milliseconds; 0 is for ever."`
	Grace        int64         `name:"grpc-max-connection-age-grace" default:"0" placeholder:"MS" group:"gRPC" help:"How long calls may take to finish on a connection that is too old, in milliseconds; 0 is for ever."`
}

func defaultConnections() Connections {
	return Connections{MaxHTTP: 16384, MaxGRPC: 4096, MaxStreams: 4096, Compression: "none", PingTime: 7_200_000, PingTimeout: 20_000, PingInterval: 300_000}
}

func (c *Connections) validate() error {
	for _, ms := range []struct {
		setting      string
		value, least int64
	}{
		{"--grpc-keepalive-time", c.PingTime, 1},
		{"--grpc-keepalive-timeout", c.PingTimeout, 1},
		{"--grpc-http2-min-recv-ping-interval-without-data", c.PingInterval, 0},
		{"--grpc-max-connection-age", c.MaxAge, 0},
		{"--grpc-max-connection-age-grace", c.Grace, 0},
	} {
		if ms.value < ms.least {
			return errs.New(errs.ConfigInvalid, "%s is %d: want milliseconds, %d or more", ms.setting, ms.value, ms.least)
		}
	}
	for _, count := range []struct {
		setting      string
		value, least int
	}{
		{"--http-max-connections", c.MaxHTTP, 0}, {"--grpc-max-connections", c.MaxGRPC, 0}, {"--grpc-max-concurrent-streams", c.MaxStreams, 1},
	} {
		if count.value < count.least || count.value > math.MaxInt32 {
			return errs.New(errs.ConfigInvalid, "%s is %d: want %d to %d", count.setting, count.value, count.least, math.MaxInt32)
		}
	}
	_, httpErr := restrictions("--http-restricted-api", c.HTTPRestrict)
	_, grpcErr := restrictions("--grpc-restricted-protocol", c.GRPCRestrict)
	_, tlsErr := c.tls()
	return errors.Join(httpErr, grpcErr, tlsErr)
}

// bounded closes what a protocol's listener accepts beyond its bound. The log says
// so for 1, 2, 4 and so on of them: a hostile client must not fill it.
func (g *Gateway) bounded(l net.Listener, most int, setting string) net.Listener {
	return serve.WithMaxConnections(l, most, func(total uint64) {
		if total&(total-1) == 0 {
			g.deps.Log.Warn("connections are refused: as many are open as may be", zap.String("setting", setting), zap.Int("open", most), zap.Uint64("refused", total))
		}
	})
}

// keepalive are the server's pings and the ages of connections.
func (c *Connections) keepalive() keepalive.ServerParameters {
	return keepalive.ServerParameters{
		Time: millis(c.PingTime), Timeout: millis(c.PingTimeout),
		MaxConnectionAge: millis(c.MaxAge), MaxConnectionAgeGrace: millis(c.Grace),
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// restrictions parses the values of a flag; nil restricts nothing.
func restrictions(flag string, texts []string) (core.Restrictions, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	r := make(core.Restrictions)
	for _, text := range texts {
		if err := r.Restrict(text); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "%s: %v", flag, err)
		}
	}
	return r, nil
}

// tls is nil for plain text. As with Triton, mutual means TLS.
func (c *Connections) tls() (*serve.TLS, error) {
	switch {
	case !c.SSL.On && !c.Mutual.On:
		return nil, nil
	case c.Certificate == "" || c.Key == "":
		return nil, errs.New(errs.ConfigInvalid, "--grpc-use-ssl needs a certificate and its key: give --grpc-server-cert=FILE and --grpc-server-key=FILE")
	case c.Mutual.On && c.Roots == "":
		return nil, errs.New(errs.ConfigInvalid, "--grpc-use-ssl-mutual needs what signs the clients' certificates: give --grpc-root-cert=FILE")
	}
	return &serve.TLS{Certificate: c.Certificate, Key: c.Key, Roots: c.Roots, Mutual: c.Mutual.On}, nil
}
