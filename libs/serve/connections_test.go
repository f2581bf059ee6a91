package serve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/serve"
)

// pipes is a listener of connections in memory, for tests in virtual time.
type pipes struct {
	next   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{next: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.next:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) connect() net.Conn {
	client, server := net.Pipe()
	p.next <- server
	return client
}

// A client that has connected and says nothing, or not enough, holds a stop
// up no longer than it must.
func TestStopDoesNotWaitForSilentConnections(t *testing.T) {
	serveHTTP := func(ctx context.Context, l net.Listener, grace time.Duration) error {
		return serve.HTTP(ctx, &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Hour}, l, grace)
	}
	serveGRPC := func(ctx context.Context, l net.Listener, grace time.Duration) error {
		return serve.GRPC(ctx, grpc.NewServer(), l, grace)
	}
	const grace = 2 * time.Second
	for _, c := range []struct {
		name  string
		serve func(context.Context, net.Listener, time.Duration) error
		said  string
		limit time.Duration
	}{
		{"HTTP, nothing said", serveHTTP, "", time.Second},
		{"HTTP, half a request", serveHTTP, "GET / HTTP/1.1\r\n", grace},
		{"gRPC, nothing said", serveGRPC, "", time.Second},
		{"gRPC, half a preface", serveGRPC, "PRI * HTTP/2.0\r\n", grace},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, served := newPipes(), make(chan error, 1)
				ctx, stop := context.WithCancel(t.Context())
				go func() { served <- c.serve(ctx, l, grace) }()
				client := l.connect()
				go func() { _, _ = io.Copy(io.Discard, client) }() // what the server says of itself
				if _, err := io.WriteString(client, c.said); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				begun := time.Now()
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took > c.limit {
					t.Errorf("the stop took %v, want at most %v", took, c.limit)
				}
			})
		})
	}
}
