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
	"github.com/nereid-serving/nereid/libs/remote/leader"
)

// Options say how a client calls.
type Options struct {
	// TLS is how the client proves who it is and knows the other end; nil is
	// plain text.
	TLS *tls.Config
	// Patience is for how long a call waits while nobody holds the role or its
	// holder does not answer; 0 is half a minute for the registry, as in one
	// process, and 5 s for a pool, whose standbys take less to take it over.
	Patience time.Duration
}

// Pauses between calls of a holder that does not answer.
const (
	shortestPause = 20 * time.Millisecond
	longestPause  = time.Second
)

// caller calls the present holder of a role. It is safe for concurrent use.
type caller struct {
	finder   *leader.Finder
	options  []grpc.DialOption
	patience time.Duration

	mu      sync.Mutex
	address string           // guarded by mu
	conn    *grpc.ClientConn // to address, nil before the first; guarded by mu
	closed  bool             // guarded by mu
}

func newCaller(f *leader.Finder, o Options, patience time.Duration) *caller {
	return &caller{finder: f, options: dialOptions(o.TLS), patience: cmp.Or(o.Patience, patience)}
}

func dialOptions(secured *tls.Config) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if secured != nil {
		creds = credentials.NewTLS(secured)
	}
	retry := backoff.Config{BaseDelay: shortestPause, Multiplier: 2, Jitter: 0.2, MaxDelay: longestPause}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * longestPause}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// A host that has vanished says nothing, also of a load that takes long.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		// Answers have as many bytes as there are models.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
	}
}

// to returns the connection to an address: the one that is kept, which is
// closed where it leads elsewhere.
func (c *caller) to(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errs.New(errs.Draining, "the process stops and asks nothing more")
	}
	if c.conn != nil && c.address == address {
		return c.conn, nil
	}
	conn, err := grpc.NewClient(address, c.options...)
	if err != nil {
		return nil, errs.Wrap(errs.StateUnavailable, err, "the address %q of %s's holder cannot be dialled: %v", address, c.finder.Role(), err)
	}
	if c.conn != nil {
		_ = c.conn.Close() // it says only whether it was closed before
	}
	c.address, c.conn = address, conn
	return conn, nil
}

// close ends the calls under way and refuses others.
func (c *caller) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// call has the holder answer, whoever that is by then: a call whose holder
// goes away, or does not hold the role any more, is made again. The error is
// the holder's, or nobody's if nobody has answered for as long as patience
// goes, or ctx's.
func (c *caller) call(ctx context.Context, nobody func(cause error) error, do func(context.Context, *grpc.ClientConn) error) error {
	var cause error
	pause := shortestPause
	for until := time.Now().Add(c.patience); ; {
		begun := time.Now()
		answered, err := c.try(ctx, until, do)
		switch {
		case ctx.Err() != nil && !answered:
			return context.Cause(ctx)
		case answered && errs.Of(err) != errs.StateUnavailable:
			return err
		case err != nil:
			cause = err
		}
		if time.Since(begun) > longestPause && err != nil { // somebody has worked on it
			until, pause = time.Now().Add(c.patience), shortestPause
		}
		if time.Now().Add(pause).After(until) {
			return nobody(cause)
		}
		c.rest(ctx, pause-rand.N(pause/2))
		pause = min(2*pause, longestPause)
	}
}

// try makes the call once. It ends unanswered, without an error, if nobody
// holds the role until then, and with one if another takes the role over.
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
	conn, err := c.to(h.Address)
	if err != nil {
		return errs.Of(err) == errs.Draining, err
	}
	own, end := context.WithCancel(ctx)
	defer end()
	go c.follow(own, h, end) // ends with own
	if err = do(own, conn); err == nil {
		return true, nil
	}
	answered, err = decode(err, h.ID+" at "+h.Address)
	return answered, err
}

// follow ends a call when another holds the role.
func (c *caller) follow(ctx context.Context, since leader.Holder, end func()) {
	for {
		h, changed := c.finder.Present()
		if h.Epoch != 0 && h.Epoch != since.Epoch {
			end()
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// rest lets time go by until the role changes hands.
func (c *caller) rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	_, changed := c.finder.Present()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}
