package gateway

import (
	"time"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// ConnectionSettings are those about the connections of clients. Times are in
// milliseconds.
type ConnectionSettings struct {
	ReuseHTTP    config.Switch `name:"reuse-http-port" default:"false" group:"HTTP" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	HTTPRestrict []string      `name:"http-restricted-api" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"HTTP" help:"Answer calls of these APIs only with this header: health, metadata, inference, model-config, model-repository, statistics, shared-memory, trace, logging; repeat the flag for several headers."`

	ReuseGRPC    config.Switch `name:"reuse-grpc-port" default:"false" group:"gRPC" help:"Share the port with other processes that do; the kernel spreads connections over them."`
	GRPCRestrict []string      `name:"grpc-restricted-protocol" sep:"none" secret:"value" placeholder:"API,API:HEADER=VALUE" group:"gRPC" help:"As --http-restricted-api; clients send the header as triton-grpc-protocol-HEADER."`
	SSL          config.Switch `name:"grpc-use-ssl" default:"false" group:"gRPC" help:"Speak TLS, with --grpc-server-cert and --grpc-server-key. Changed files are read again."`
	Mutual       config.Switch `name:"grpc-use-ssl-mutual" default:"false" group:"gRPC" help:"Speak TLS with clients alone whose certificate --grpc-root-cert has signed."`
	Certificate  string        `name:"grpc-server-cert" placeholder:"FILE" group:"gRPC" help:"The server's certificate, in PEM."`
	Key          string        `name:"grpc-server-key" placeholder:"FILE" group:"gRPC" help:"The private key of the certificate, in PEM."`
	Roots        string        `name:"grpc-root-cert" placeholder:"FILE" group:"gRPC" help:"Certificates that sign those of clients, in PEM."`
	Compression  string        `name:"grpc-infer-response-compression-level" default:"none" enum:"none,low,medium,high" group:"gRPC" help:"low, medium and high alike send the answers of inferences as gzip to clients that take it; none compresses an answer as its request was."`

	PingTime     int64         `name:"grpc-keepalive-time" default:"7200000" group:"gRPC" help:"How long a connection is silent before the server pings the client, in milliseconds; 1000 at the least."`
	PingTimeout  int64         `name:"grpc-keepalive-timeout" default:"20000" group:"gRPC" help:"How long a ping may take to be answered before the connection is closed, in milliseconds."`
	PingIdle     config.Switch `name:"grpc-keepalive-permit-without-calls" default:"false" group:"gRPC" help:"Let clients ping connections without calls."`
	PingInterval int64         `name:"grpc-http2-min-recv-ping-interval-without-data" default:"300000" group:"gRPC" help:"Least time between the pings of a client, in milliseconds; one that exceeds it twice is disconnected."`
	MaxAge       int64         `name:"grpc-max-connection-age" default:"0" placeholder:"MS" group:"gRPC" help:"How old a connection gets, give or take a tenth, in milliseconds; 0 is for ever."`
	Grace        int64         `name:"grpc-max-connection-age-grace" default:"0" placeholder:"MS" group:"gRPC" help:"How long calls may take to finish on a connection that is too old, in milliseconds; 0 is for ever."`
}

func (f *ConnectionSettings) configure(c *Config) (err error) {
	c.HTTP.Reuse, c.GRPC.Reuse = f.ReuseHTTP.On, f.ReuseGRPC.On
	if c.HTTP.Restricted, err = restrictions("--http-restricted-api", f.HTTPRestrict); err != nil {
		return err
	}
	if c.GRPC.Restricted, err = restrictions("--grpc-restricted-protocol", f.GRPCRestrict); err != nil {
		return err
	}
	c.GRPC.Compress = f.Compression != "none"
	c.GRPC.Pings = Pings{
		Interval: millis(f.PingTime), Timeout: millis(f.PingTimeout),
		FromClients: millis(f.PingInterval), WithoutCalls: f.PingIdle.On,
	}
	c.GRPC.MaxAge, c.GRPC.Grace = millis(f.MaxAge), millis(f.Grace)
	c.GRPC.TLS, err = f.tls()
	return err
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func restrictions(flag string, texts []string) (Restrictions, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	r := make(Restrictions)
	for _, text := range texts {
		if err := r.Restrict(text); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "%s: %v", flag, err)
		}
	}
	return r, nil
}

// tls is nil for plain text. As with Triton, mutual means TLS.
func (f *ConnectionSettings) tls() (*TLS, error) {
	switch {
	case !f.SSL.On && !f.Mutual.On:
		return nil, nil
	case f.Certificate == "" || f.Key == "":
		return nil, errs.New(errs.ConfigInvalid, "--grpc-use-ssl needs a certificate and its key: give --grpc-server-cert=FILE and --grpc-server-key=FILE")
	case f.Mutual.On && f.Roots == "":
		return nil, errs.New(errs.ConfigInvalid, "--grpc-use-ssl-mutual needs what signs the clients' certificates: give --grpc-root-cert=FILE")
	}
	return &TLS{Certificate: f.Certificate, Key: f.Key, Roots: f.Roots, Mutual: f.Mutual.On}, nil
}
