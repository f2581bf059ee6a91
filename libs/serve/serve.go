// Package serve opens listeners and stops servers gracefully.
package serve

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Listen opens a TCP listener. what names the endpoint and setting the
// operator's way to change it, for the error.
func Listen(ctx context.Context, address, what, setting string) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot listen for %s on %s (choose another address or port with %s, or stop what uses it): %v",
			what, address, setting, err)
	}
	return l, nil
}

// HTTP serves on l until ctx is done. Then it takes no new connections, gives
// the requests under way up to grace to finish, and closes what is left.
func HTTP(ctx context.Context, server *http.Server, l net.Listener, grace time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := server.Shutdown(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	<-failed //nolint:errcheck // ErrServerClosed
	return err
}

// GRPC does the same for a gRPC server.
func GRPC(ctx context.Context, server *grpc.Server, l net.Listener, grace time.Duration) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		server.Stop()
		<-stopped
	}
	return <-failed
}
