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
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Connections configures client connections. Times are in milliseconds.
type Connections struct {
	ReuseHTTP    config.Switch `name:"reuse-http-port" default:"false" group:"HTTP" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	HTTPRestrict []string      `name:"http-restricted-api" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"HTTP" help:"Answer calls of these APIs only with this header: health, metadata, inference, model-config, model-repository, statistics, shared-memory, trace, logging; repeat the flag for several headers."`

	HTTPSSL         config.Switch `name:"http-use-ssl" default:"false" group:"HTTP" help:"Speak TLS, with --http-server-cert and --http-server-key. Changed files are read again."`
	HTTPMutual      config.Switch `name:"http-use-ssl-mutual" default:"false" group:"HTTP" help:"Speak TLS with clients alone whose certificate --http-root-cert has signed."`
	HTTPCertificate string        `name:"http-server-cert" placeholder:"FILE" group:"HTTP" help:"The server's certificate, in PEM."`
	HTTPKey         string        `name:"http-server-key" placeholder:"FILE" group:"HTTP" help:"The private key of the certificate, in PEM."`
	HTTPRoots       string        `name:"http-root-cert" placeholder:"FILE" group:"HTTP" help:"Certificates that sign those of clients, in PEM."`

	// HTTPHeaders and GRPCHeaders match the headers that become parameters of inference requests.
	HTTPHeaders string `name:"http-header-forward-pattern" placeholder:"PATTERN" group:"HTTP" help:"Give inferences the headers that this regular expression matches in part as parameters, under their names in lower case; case is ignored unless it says (?-i), which holds it against x-name and X-Name. Never those that identify the caller."`
	GRPCHeaders string `name:"grpc-header-forward-pattern" placeholder:"PATTERN" group:"gRPC" help:"As --http-header-forward-pattern, for metadata."`

	MaxHTTP int `name:"http-max-connections" default:"16384" group:"HTTP" help:"Most connections that are open at a time, but at most one for each 256 KiB of --max-request-bytes. A new one takes the place of one that is idle, or is closed at once. 0 is no bound."`

	ReuseGRPC    config.Switch `name:"reuse-grpc-port" default:"false" group:"gRPC" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	GRPCRestrict []string      `name:"grpc-restricted-protocol" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"gRPC" help:"As --http-restricted-api; clients send the header as triton-grpc-protocol-HEADER."`
	SSL          config.Switch `name:"grpc-use-ssl" default:"false" group:"gRPC" help:"Speak TLS, with --grpc-server-cert and --grpc-server-key. Changed files are read again."`
	Mutual       config.Switch `name:"grpc-use-ssl-mutual" default:"false" group:"gRPC" help:"Speak TLS with clients alone whose certificate --grpc-root-cert has signed."`
	Certificate  string        `name:"grpc-server-cert" placeholder:"FILE" group:"gRPC" help:"The server's certificate, in PEM."`
	Key          string        `name:"grpc-server-key" placeholder:"FILE" group:"gRPC" help:"The private key of the certificate, in PEM."`
	Roots        string        `name:"grpc-root-cert" placeholder:"FILE" group:"gRPC" help:"Certificates that sign those of clients, in PEM."`
	Compression  string        `name:"grpc-infer-response-compression-level" default:"none" enum:"none,low,medium,high" group:"gRPC" help:"low, medium and high alike send the responses of inferences as gzip to clients that accept it; none compresses a response as its request was."`

	MaxGRPC    int `name:"grpc-max-connections" default:"4096" group:"gRPC" help:"Most connections that are open at a time, but at most one for each 512 KiB of --max-request-bytes. A new one takes the place of one that is idle, or is closed at once. 0 is no bound."`
	MaxStreams int `name:"grpc-max-concurrent-streams" default:"4096" group:"gRPC" help:"Most calls at a time on one connection, each stream of requests among them; clients wait with more."`

	PingTime     int64         `name:"grpc-keepalive-time" default:"7200000" group:"gRPC" help:"How long a connection is silent before the server pings the client, in milliseconds; 1000 at the least."`
	PingTimeout  int64         `name:"grpc-keepalive-timeout" default:"20000" group:"gRPC" help:"How long a ping may take to be answered before the connection is closed, in milliseconds."`
	PingIdle     config.Switch `name:"grpc-keepalive-permit-without-calls" default:"false" group:"gRPC" help:"Let clients ping connections without calls."`
	PingStrikes  int           `name:"grpc-http2-max-ping-strikes" default:"2" group:"gRPC" help:"How many pings a client may send too early; with one more it is disconnected. 0 is any number."`
	PingInterval int64         `name:"grpc-http2-min-recv-ping-interval-without-data" default:"300000" group:"gRPC" help:"Least time between the pings of a client, in milliseconds, unless it gets headers or data in between."`
	MaxAge       int64         `name:"grpc-max-connection-age" default:"0" placeholder:"MS" group:"gRPC" help:"How old a connection gets, give or take a tenth, in milliseconds; 0 is for ever."`
	Grace        int64         `name:"grpc-max-connection-age-grace" default:"0" placeholder:"MS" group:"gRPC" help:"How long calls may take to finish on a connection that is too old, in milliseconds; 0 is for ever."`
}

func defaultConnections() Connections {
	return Connections{MaxHTTP: 16384, MaxGRPC: 4096, MaxStreams: 4096, Compression: "none", PingTime: 7_200_000, PingTimeout: 20_000, PingStrikes: 2, PingInterval: 300_000}
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
		{"--http-max-connections", c.MaxHTTP, 0},
		{"--grpc-max-connections", c.MaxGRPC, 0},
		{"--grpc-max-concurrent-streams", c.MaxStreams, 1},
		{"--grpc-http2-max-ping-strikes", c.PingStrikes, 0},
	} {
		if count.value < count.least || count.value > math.MaxInt32 {
			return errs.New(errs.ConfigInvalid, "%s is %d: want %d to %d", count.setting, count.value, count.least, math.MaxInt32)
		}
	}
	_, httpErr := restrictions("--http-restricted-api", c.HTTPRestrict)
	_, grpcErr := restrictions("--grpc-restricted-protocol", c.GRPCRestrict)
	_, tlsErr := c.tls()
	_, httpTLSErr := c.httpTLS()
	_, httpPatternErr := path.ForwardPattern("--http-header-forward-pattern", c.HTTPHeaders)
	_, grpcPatternErr := path.ForwardPattern("--grpc-header-forward-pattern", c.GRPCHeaders)
	return errors.Join(httpErr, grpcErr, tlsErr, httpTLSErr, httpPatternErr, grpcPatternErr)
}

// An idle connection's memory in bytes, and the fraction 1/connectionShare of --max-request-bytes that all
// connections of one protocol may use. At the default of --max-request-bytes this bound is at least the flags'
// defaults.
const (
	httpConnectionBytes = 32 << 10
	grpcConnectionBytes = 64 << 10
	connectionShare     = 8
)

// bounded limits the connections of a listener, each of which uses the given number of bytes. It logs the 1st,
// 2nd, 4th, 8th … closed connection, so that a hostile client cannot flood the log.
func (g *Gateway) bounded(l net.Listener, most int, bytes int64, setting string) net.Listener {
	if affordable := g.config.MaxRequestBytes / connectionShare / bytes; g.config.MaxRequestBytes > 0 && most > 0 {
		most = min(most, int(max(affordable, 1)))
	}
	return serve.WithMaxConnections(l, most, func(total uint64) {
		if total&(total-1) == 0 {
			g.deps.Log.Warn("connections are closed, idle ones first: as many are open as may be", zap.String("setting", setting), zap.Int("open", most), zap.Uint64("closed", total))
		}
	})
}

// keepalive returns the settings for the server's pings and for connection ages.
func (c *Connections) keepalive() keepalive.ServerParameters {
	return keepalive.ServerParameters{
		Time: millis(c.PingTime), Timeout: millis(c.PingTimeout),
		MaxConnectionAge: millis(c.MaxAge), MaxConnectionAgeGrace: millis(c.Grace),
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// restrictions parses the values of a flag. A nil result restricts nothing.
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

// tls returns the TLS settings of the gRPC listener, or nil for plain text.
func (c *Connections) tls() (*serve.TLS, error) {
	return serve.TLS{Certificate: c.Certificate, Key: c.Key, Roots: c.Roots, Mutual: c.Mutual.On}.Given(c.SSL.On, "--grpc")
}

// httpTLS returns the TLS settings of the HTTP listener, or nil for plain text.
func (c *Connections) httpTLS() (*serve.TLS, error) {
	return serve.TLS{Certificate: c.HTTPCertificate, Key: c.HTTPKey, Roots: c.HTTPRoots, Mutual: c.HTTPMutual.On, Protocol: "http/1.1"}.Given(c.HTTPSSL.On, "--http")
}
