package control

import (
	"cmp"
	"context"
	"crypto/tls"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/lifecycle"
)

// Options say how a client calls.
type Options struct {
	// TLS is how the client authenticates itself and the server; nil is plain
	// text.
	TLS *tls.Config
	// Timeout is how long a call waits while no process has the role or its holder does not
	// respond; 0 is half a minute for the registry, as in one process, and 5 s for a pool,
	// whose standbys take over in less.
	Timeout time.Duration
}

// caller calls the current holder of a role. It is safe for concurrent use.
type caller struct {
	finder  *Finder
	options []grpc.DialOption
	timeout time.Duration

	mu      sync.Mutex
	address string           // guarded by mu
	conn    *grpc.ClientConn // to address, nil before the first; guarded by mu
	closed  bool             // guarded by mu
}

func newCaller(f *Finder, role identity.Role, o Options, timeout time.Duration) *caller {
	return &caller{finder: f, options: dialOptions(identity.Expect(o.TLS, role)), timeout: cmp.Or(o.Timeout, timeout)}
}

func dialOptions(secured *tls.Config) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if secured != nil {
		creds = credentials.NewTLS(secured)
	}
	retry := backoff.Config{BaseDelay: firstDelay, Multiplier: 2, Jitter: 0.2, MaxDelay: maxDelay}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * maxDelay}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// A host that has vanished resets no connection, also not that of a long load.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		// Responses grow with the number of models.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}
}

// connect returns the connection to an address. It keeps one: a connection to
// another address is closed.
func (c *caller) connect(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errs.New(errs.Draining, "the process stops and makes no further calls")
	}
	if c.conn != nil && c.address == address {
		return c.conn, nil
	}
	conn, err := grpc.NewClient(address, c.options...)
	if err != nil {
		return nil, errs.Wrap(errs.StateUnavailable, err, "the address %q of %s's holder cannot be used: %v", address, c.finder.Role(), err)
	}
	if c.conn != nil {
		_ = c.conn.Close() // fails only if it was closed before
	}
	c.address, c.conn = address, conn
	return conn, nil
}

// close cancels the calls in flight and refuses others.
func (c *caller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// call makes a call to the holder, whichever process that is by then: a call
// whose holder goes away, or does not hold the role any more, is made again. The
// error is the holder's, or unavailable's once no holder has answered for the
// timeout, or ctx's.
func (c *caller) call(ctx context.Context, unavailable func(cause error) error, do func(context.Context, *grpc.ClientConn) error) error {
	var cause error
	delay := firstDelay
	for until := time.Now().Add(c.timeout); ; {
		started := time.Now()
		answered, err := c.try(ctx, until, do)
		switch {
		case ctx.Err() != nil && !answered:
			return context.Cause(ctx)
		case answered && errs.Of(err) != errs.StateUnavailable:
			return err
		case err != nil:
			cause = err
		}
		if time.Since(started) > maxDelay && err != nil { // a holder has worked on it
			until, delay = time.Now().Add(c.timeout), firstDelay
		}
		if time.Now().Add(delay).After(until) {
			return unavailable(cause)
		}
		_, changed := c.finder.Current()
		lifecycle.PauseUntil(ctx, changed, delay-rand.N(delay/2))
		delay = min(2*delay, maxDelay)
	}
}

// try makes the call once. It returns unanswered without an error if no process
// holds the role until then, and with one if another process takes the role
// over meanwhile.
func (c *caller) try(ctx context.Context, until time.Time, do func(context.Context, *grpc.ClientConn) error) (answered bool, err error) {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	h, _, ok := c.finder.Wait(waiting)
	if !ok {
		return false, nil
	}
	if h.Address == "" {
		return false, errs.New(errs.StateUnavailable, "%s, which holds the role %s, has no address for other services: upgrade it, or give it one with --advertise", h.ID, c.finder.Role())
	}
	conn, err := c.connect(h.Address)
	if err != nil {
		return errs.Of(err) == errs.Draining, err
	}
	leadership, end := c.finder.leadership(ctx, h)
	defer end()
	if err = do(leadership, conn); err == nil {
		return true, nil
	}
	answered, err = decode(err, h.ID+" at "+h.Address)
	return answered, err
}
