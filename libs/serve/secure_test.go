package serve_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/serve"
)

// An HTTP server that speaks TLS offers http/1.1 alone, shows its handlers the client's
// certificate, refuses clients without one, and follows its files.
func TestHTTPSpeaksTLS(t *testing.T) {
	dir := t.TempDir()
	first, client := newIdentity(t, "localhost"), newIdentity(t, "tenant")
	files := first.write(t, dir)
	files.Mutual, files.Protocol, files.Roots = true, "http/1.1", filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(files.Roots, client.certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Proto, r.TLS.PeerCertificates[0].Subject.CommonName)
	})}
	if err := files.Secure(server, zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve.HTTP(ctx, server, serve.WithWriteTimeout(l, time.Minute), time.Second) }()
	ask := func(trusted identity, from *identity) (string, error) {
		config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost", MinVersion: tls.VersionTLS12}
		config.RootCAs.AppendCertsFromPEM(trusted.certificate)
		if from != nil {
			pair, err := tls.X509KeyPair(from.certificate, from.key)
			if err != nil {
				t.Fatal(err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		r, err := (&http.Client{Transport: transport}).Get("https://" + l.Addr().String())
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return string(body), err
	}
	if got, err := ask(first, &client); got != "HTTP/1.1 tenant" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	stranger := newIdentity(t, "tenant")
	for name, from := range map[string]*identity{"none": nil, "another's": &stranger} {
		if got, err := ask(first, from); err == nil {
			t.Errorf("a client with the certificate %s gets %q", name, got)
		}
	}
	only := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // the protocol is the test
	if c, err := tls.Dial("tcp", l.Addr().String(), only); err == nil {
		t.Errorf("a client of HTTP/2 alone is served %q", c.ConnectionState().NegotiatedProtocol)
		_ = c.Close()
	}
	second := newIdentity(t, "localhost")
	second.write(t, dir)
	if err := os.Chtimes(files.Certificate, time.Time{}, time.Now().Add(time.Hour)); err != nil { // of the same size
		t.Fatal(err)
	}
	if got, err := ask(second, &client); got != "HTTP/1.1 tenant" || err != nil {
		t.Errorf("after the change: %q, %v", got, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
