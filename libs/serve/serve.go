// Package serve opens listeners and stops servers gracefully.
package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
)

// HTTP serves on l until ctx is done. Then it takes no new connections, closes
// those on which nothing was asked, gives the requests under way up to grace
// to finish, and closes what is left.
func HTTP(ctx context.Context, server *http.Server, l net.Listener, grace time.Duration) error {
	conns := track(l)
	serve := func() error {
		if err := server.Serve(conns); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
	finish := func(ctx context.Context) error {
		conns.closeSilent()
		return server.Shutdown(ctx)
	}
	return run(ctx, grace, serve, finish, server.Close)
}

// GRPC does the same for a gRPC server.
func GRPC(ctx context.Context, server *grpc.Server, l net.Listener, grace time.Duration) error {
	conns := track(l)
	finish := func(ctx context.Context) error {
		conns.closeSilent()
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
	cut := func() error {
		conns.closeAll() // also those in a handshake, for which Stop would wait
		server.Stop()
		return nil
	}
	serve := func() error {
		// It may have been stopped before it began, or through another listener.
		if err := server.Serve(conns); !errors.Is(err, grpc.ErrServerStopped) {
			return err
		}
		return nil
	}
	return run(ctx, grace, serve, finish, cut)
}

// run serves until ctx is done, then lets finish end the work under way, and
// cuts off what is left after grace.
func run(ctx context.Context, grace time.Duration, serve func() error, finish func(context.Context) error, cut func() error) error {
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
		err = cut()
	}
	return errors.Join(err, <-served)
}
