package process

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// PeerSettings are the listening addresses of a process for other services. The parser needs
// the variable listen, the default.
type PeerSettings struct {
	Listen    []string `name:"listen" sep:"none" default:"${listen}" placeholder:"ADDRESS" group:"Cluster" help:"Address for the other services, as HOST:PORT or unix:PATH; repeat the flag for several."`
	Advertise string   `name:"advertise" placeholder:"ADDRESS" group:"Cluster" help:"Address under which the other services find this one; without it the first of --listen, and if that is every interface the one that this process reaches NATS by."`
}

// Peers are the open listeners for the other services.
type Peers struct {
	listeners []net.Listener
	address   string
}

// Listen opens the listeners. The caller must call [Peers.Serve], which closes
// them. Errors have the reason config_invalid, or state_unavailable where NATS
// is away.
func (p *Process) Listen(ctx context.Context, s *PeerSettings) (*Peers, error) {
	return s.open(ctx, p.Bus.Host())
}

// open listens. host is this one's address where it listens on every interface.
func (s *PeerSettings) open(ctx context.Context, host string) (*Peers, error) {
	p := new(Peers)
	for _, address := range s.Listen {
		l, err := serve.Listen(ctx, serve.Endpoint{Address: address, Name: "the other services", Setting: "--listen"})
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.listeners = append(p.listeners, l)
	}
	if p.address = s.advertised(p.listeners[0].Addr(), host); p.address == "" {
		return nil, errors.Join(errs.New(errs.StateUnavailable, "this host's address is unknown while NATS is away: say with --advertise where the other services find this one"), p.close())
	}
	return p, nil
}

// Validate refuses values out of range, with the reason config_invalid.
func (s *PeerSettings) Validate() error {
	if len(s.Listen) == 0 {
		return errs.New(errs.ConfigInvalid, "--listen is empty: give an address for the other services, such as 0.0.0.0:8011")
	}
	for _, address := range s.Listen {
		if strings.HasPrefix(address, unixScheme) {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return errs.New(errs.ConfigInvalid, "--listen=%s: want HOST:PORT or unix:PATH", address)
		}
	}
	return nil
}

const unixScheme = "unix:"

// advertised returns the address for others of a listener at bound; empty is
// unknown.
func (s *PeerSettings) advertised(bound net.Addr, host string) string {
	tcp, isTCP := bound.(*net.TCPAddr)
	switch {
	case s.Advertise != "":
		return s.Advertise
	case !isTCP:
		return unixScheme + bound.String()
	case tcp.IP.IsUnspecified() && host == "":
		return ""
	case tcp.IP.IsUnspecified():
		return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	}
	return tcp.String()
}

// Address is the address under which other services reach this one.
func (p *Peers) Address() string { return p.address }

// grace is how long responses in flight may take to reach the peers at the end.
const grace = 2 * time.Second

// StopTimeout is how long a program takes at most to stop once its service has: it ends the
// streams of peers, the endpoint for operators and the connection to NATS.
const StopTimeout = grace + 3*time.Second

// Serve serves until ctx is done.
func (p *Peers) Serve(ctx context.Context, server *grpc.Server) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range p.listeners {
		group.Go(func() error { return serve.GRPC(ctx, server, l, grace) })
	}
	return group.Wait()
}

func (p *Peers) close() error {
	var err error
	for _, l := range p.listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}
