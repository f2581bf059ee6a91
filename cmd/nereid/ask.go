package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
)

// server is where a command finds the server that it asks.
type server struct {
	URL      string `name:"url" placeholder:"HOST:PORT" help:"Address of the server (localhost:8000 for HTTP, localhost:8001 for gRPC)."`
	Protocol string `name:"protocol" default:"http" enum:"http,grpc" help:"Protocol: http or grpc."`
	Caller   caller `embed:""`
}

// caller is how a command shows itself to the server that it asks.
type caller struct {
	TLS         bool          `name:"tls" help:"Use TLS; the three flags below imply it."`
	Roots       string        `name:"tls-root" placeholder:"FILE" help:"Certificate authorities of the server, in PEM, instead of the system's."`
	Certificate string        `name:"tls-cert" placeholder:"FILE" help:"Client certificate, in PEM, for a server that requires one."`
	Key         string        `name:"tls-key" placeholder:"FILE" help:"The private key of the certificate, in PEM."`
	Header      []header      `name:"header" short:"H" sep:"none" placeholder:"'NAME: VALUE'" help:"A header to send with every call, such as for a restricted API or a proxy; over gRPC as metadata; repeat the flag for several."`
	Timeout     time.Duration `name:"timeout" help:"How long to wait, such as 200ms; also sent to the server as the deadline."`
}

// header is one that goes with every call.
type header struct{ name, value string }

// UnmarshalText reads NAME: VALUE, as curl does.
func (h *header) UnmarshalText(text []byte) error {
	name, value, ok := strings.Cut(string(text), ":")
	h.name, h.value = name, strings.TrimSpace(value)
	if !ok || !httpguts.ValidHeaderFieldName(h.name) || !httpguts.ValidHeaderFieldValue(h.value) {
		return errs.New(errs.ConfigInvalid, "%q is no header: want NAME: VALUE, such as 'authorization: Bearer TOKEN'", name)
	}
	return nil
}

// ask calls the server.
func (s *server) ask(ctx context.Context, call func(context.Context, client.Client) error) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := s.Caller.limit(ctx)
	defer cancel()
	return withHint(call(ctx, c))
}

// limit ends ctx at the timeout, if there is one.
func (s *caller) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout > 0 {
		return context.WithTimeout(ctx, s.Timeout)
	}
	return context.WithCancel(ctx)
}

// headers are those that go with every call.
func (s *caller) headers() http.Header {
	all := make(http.Header)
	for _, h := range s.Header {
		all.Add(h.name, h.value)
	}
	return all
}

func (s *server) client() (client.Client, error) {
	secured, err := s.Caller.tls()
	if err != nil {
		return nil, err
	}
	o := client.Options{TLS: secured, Header: s.Caller.headers()}
	if s.Protocol == "grpc" {
		return client.GRPC(cmp.Or(s.URL, "localhost:8001"), o)
	}
	return client.HTTP(cmp.Or(s.URL, "localhost:8000"), o), nil
}

// tls is nil for plain text.
func (s *caller) tls() (*tls.Config, error) {
	if !s.TLS && s.Roots == "" && s.Certificate == "" && s.Key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.Roots != "" {
		text, err := os.ReadFile(s.Roots)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "--tls-root: %v", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errs.New(errs.ConfigInvalid, "--tls-root: %s has no certificate in PEM", s.Roots)
		}
	}
	if s.Certificate != "" || s.Key != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Key)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "--tls-cert=%s with --tls-key=%s: %v", s.Certificate, s.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// closedHint is for a server that hangs up. Why it does may be lost: a client
// that writes to a closed connection never reads the alert that came before.
const closedHint = "the server closed the connection: where it speaks TLS add --tls, where it asks for a certificate --tls-cert=FILE and --tls-key=FILE"

// withHint adds what to do about an error of a connection. The libraries give
// most of them as texts alone.
func withHint(err error) error {
	if err == nil {
		return nil
	}
	const speaksGRPC = "the port seems to speak gRPC: add --protocol=grpc, or give the port of HTTP"
	for _, h := range []struct{ sign, hint string }{
		{"malformed HTTP", speaksGRPC},
		{"readLoopPeekFailLocked", speaksGRPC}, // net/http: the server spoke before it was asked
		{"looked like an HTTP/1.1 header", "the port seems to speak HTTP: give the port of gRPC, or leave --protocol=grpc out where it was given"},
		{"HTTP response to HTTPS client", "the server does not speak TLS there: leave https:// and --tls out"},
		{"does not look like a TLS handshake", "the server does not speak TLS there: leave --tls out"},
		{"certificate signed by unknown authority", "name what has signed the server's certificate with --tls-root=FILE"},
		{"does not know the call", "ask a gateway at its port of gRPC, or a registry at its --listen"},
		{"certificate required", "the server asks for a certificate: give --tls-cert=FILE and --tls-key=FILE"},
		{"error reading server preface", closedHint},
		{"broken pipe", closedHint},
		{"connection reset by peer", closedHint},
		{"connection refused", "start one with nereid serve, or say with --url where it is"},
	} {
		if strings.Contains(err.Error(), h.sign) {
			return fmt.Errorf("%w\n%s", err, h.hint)
		}
	}
	return err
}
