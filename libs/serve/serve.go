// Package serve opens listeners and stops servers gracefully.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
)

// HTTP serves on l until ctx is done. Then it accepts no new connections, closes
// those that have sent nothing, gives the requests in flight up to grace to
// finish, and closes the rest. With a TLSConfig the server speaks TLS.
func HTTP(ctx context.Context, server *http.Server, l net.Listener, grace time.Duration) error {
	conns := track(l)
	var listener net.Listener = conns
	if server.TLSConfig != nil {
		listener = tls.NewListener(conns, server.TLSConfig) // outermost, so that handlers see the client's certificate
	}
	serve := func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
	finish := func(ctx context.Context) error {
		conns.closeUnused()
		return server.Shutdown(ctx)
	}
	return run(ctx, grace, serve, finish, server.Close)
}

// GRPC does the same for a gRPC server.
func GRPC(ctx context.Context, server *grpc.Server, l net.Listener, grace time.Duration) error {
	conns := track(l)
	finish := func(ctx context.Context) error {
		conns.closeUnused()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			server.GracefulStop()
		}()
		select {
		case <-stopped:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	abort := func() error {
		conns.closeAll() // also those in a handshake, for which Stop would wait
		server.Stop()
		return nil
	}
	serve := func() error {
		// It may have been stopped before it started, or through another listener.
		if err := server.Serve(conns); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}
	return run(ctx, grace, serve, finish, abort)
}

// run serves until ctx is done, then lets finish end the work in flight, and
// aborts what is left after grace.
func run(ctx context.Context, grace time.Duration, serve func() error, finish func(context.Context) error, abort func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	finishing, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := finish(finishing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = abort()
	}
	return errors.Join(err, <-served)
}
