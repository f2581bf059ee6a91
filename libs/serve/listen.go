package serve

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Endpoint is where a server listens.
type Endpoint struct {
	// Address is a host and a port, or unix:PATH for a socket in the file
	// system.
	Address string
	// Reuse lets several processes listen on one TCP port; the kernel spreads
	// the connections over them.
	Reuse bool
	// Name says what listens, and Setting is the setting that changes the
	// address; both are for the error.
	Name, Setting string
}

// Listen opens a listener. It replaces a socket file that a killed process left
// behind.
func Listen(ctx context.Context, e Endpoint) (net.Listener, error) {
	network, address := "tcp", e.Address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
		removeStale(ctx, path)
	}
	var config net.ListenConfig
	if e.Reuse && network == "tcp" {
		config.Control = reusePort
	}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot listen for %s on %s (choose another address or port with %s, or stop what uses it): %v",
			e.Name, e.Address, e.Setting, err)
	}
	return l, nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	controlled := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(controlled, err)
}

// removeStale removes the socket file at path if nobody listens there.
func removeStale(ctx context.Context, path string) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // if it stays, listening fails and says so
	}
}
