package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus/history"
	"github.com/nereid-serving/nereid/libs/errs"
)

// Config says where the control plane's store is.
type Config struct {
	// URL names the NATS servers, separated by commas. Empty starts a server
	// inside this process.
	URL string
	// Dir is where the embedded server keeps its state. Empty is a temporary
	// directory that Close removes: a restart then begins with nothing.
	Dir string
	// Listen is the address (host:port, port 0 for any free one) on which the
	// embedded server also takes connections, without authentication but for the password. Empty
	// opens no socket: only this process can reach the server.
	Listen string
	// Password, if not empty, is required to connect to the embedded server; [Bus.Addr]
	// contains it.
	Password string
	// Name is this process's name in the server's connection list and log.
	Name string
	// Credentials is the path of a NATS credentials file, or of a file with a
	// user's key (an nkey seed) alone. Empty is none.
	Credentials string
	// TLS configures connections to servers whose URL begins with tls://. Nil
	// trusts the roots of the system and shows no certificate.
	TLS *tls.Config
	// Replicas is how many servers keep each bucket; zero is 1. More than 1
	// needs a NATS cluster of at least that size at URL.
	Replicas int
	// Lease is how long a lease of any bucket lives without renewal, in whole
	// seconds, where its claim says nothing else. Zero is each bucket's own time.
	Lease time.Duration
	// Log receives connection changes and the embedded server's warnings. Nil
	// logs nothing.
	Log *zap.Logger
}

const (
	connectTimeout = 5 * time.Second
	// exchangeTimeout bounds one request to the server and its response.
	exchangeTimeout = 5 * time.Second
	drainTimeout    = 2 * time.Second
	pingInterval    = 5 * time.Second
	// Below the shortest lease, so that holders reconnect before their leases
	// count as expired (see Bucket.Watch).
	maxBackoff = time.Second
)

// Bus is this process's connection to the store. Its methods are safe for
// concurrent use.
type Bus struct {
	conn     *nats.Conn
	js       jetstream.JetStream
	server   *embedded // nil where the server is elsewhere
	replicas int
	lease    time.Duration // 0 is each bucket's own
	log      *zap.Logger

	// life ends at Close; every watch and lease ends with it. It is a context
	// since what it interrupts takes a context.
	life      context.Context
	end       context.CancelFunc
	running   sync.WaitGroup // watches and leases; see start
	closed    chan struct{}  // closed by NATS when the connection is gone for good
	closeOnce sync.Once
	closeErr  error

	history *history.History
	missing chan struct{} // has room for one; wakes KeepBuckets

	mu   sync.Mutex
	back chan struct{} // guarded by mu; closed and replaced at each reconnect
}

// Open connects to the servers at cfg.URL, or starts an embedded one, and
// checks that JetStream answers. ctx bounds the opening only. The caller must
// Close the Bus. Errors have the reason state_unavailable, or config_invalid where
// the credentials cannot be used, which a retry does not change.
//
// Once open, a Bus reconnects forever, with backoff; see [Bus.Connected].
func Open(ctx context.Context, cfg Config) (*Bus, error) {
	b := &Bus{
		replicas: max(cfg.Replicas, 1),
		lease:    cfg.Lease,
		log:      cfg.Log,
		closed:   make(chan struct{}),
		back:     make(chan struct{}),
		history:  history.New(),
		missing:  make(chan struct{}, 1),
	}
	if b.log == nil {
		b.log = zap.NewNop()
	}
	b.life, b.end = context.WithCancel(context.Background())
	if err := b.open(ctx, cfg); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Bus) open(ctx context.Context, cfg Config) error {
	opts, err := b.options(ctx, cfg)
	if err != nil {
		return err
	}
	where := "the server at " + Redacted(cfg.URL)
	if cfg.URL == "" {
		server, err := startEmbedded(cfg, b.log)
		if err != nil {
			return err
		}
		b.server = server
		opts = append(opts, nats.InProcessServer(server))
		if cfg.Password != "" {
			opts = append(opts, nats.UserInfo(embeddedUser, cfg.Password))
		}
		where = "the embedded server"
	}
	if err := ctx.Err(); err != nil {
		return unavailable(err, "connect to %s", where)
	}
	conn, err := nats.Connect(cfg.URL, opts...)
	if err != nil {
		remedy, err := explained(err)
		return unavailable(err, "cannot connect to %s: %s", where, remedy)
	}
	b.conn = conn
	if b.js, err = jetstream.New(conn); err != nil {
		return unavailable(err, "use JetStream of %s", where)
	}
	if _, err := b.js.AccountInfo(ctx); err != nil {
		return unavailable(err, "%s does not answer for JetStream: start it with JetStream enabled and allow it to this account", where)
	}
	return nil
}

func (b *Bus) options(ctx context.Context, cfg Config) ([]nats.Option, error) {
	timeout := connectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(timeout),
		nats.DrainTimeout(drainTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(backoff),
		// A write while the server is away fails at once: one that waits in a
		// buffer could be applied after its caller gave up.
		nats.ReconnectBufSize(-1),
		nats.ReconnectHandler(b.onReconnect),
		nats.DisconnectErrHandler(b.onDisconnect),
		nats.ErrorHandler(b.onError),
		nats.ClosedHandler(func(*nats.Conn) { close(b.closed) }),
	}
	if cfg.TLS != nil && strings.HasPrefix(cfg.URL, "tls://") {
		opts = append(opts, nats.Secure(cfg.TLS))
	}
	if cfg.Credentials == "" {
		return opts, nil
	}
	proof, err := credentials(cfg.Credentials)
	return append(opts, proof...), err
}

// backoff is how long to wait after so many failed attempts: doubling from
// 50 ms to maxBackoff, less up to a half at random so that the clients of a
// restarted server do not connect all at once.
func backoff(attempts int) time.Duration {
	d := min(50*time.Millisecond<<min(max(attempts, 0), 16), maxBackoff)
	return d - rand.N(d/2)
}

// retries counts the failed attempts of one caller.
type retries int

// wait counts a failure and returns how long to wait after it.
func (r *retries) wait() time.Duration {
	d := backoff(int(*r))
	*r++
	return d
}

// Connected reports whether the connection is up at this moment.
func (b *Bus) Connected() bool { return b.conn.IsConnected() }

// Host is the address of this process's host on the network by which it
// reaches the server: others there find it under that address. It is empty while
// the connection is away and where the server is embedded.
func (b *Bus) Host() string {
	host, _, err := net.SplitHostPort(b.conn.LocalAddr())
	if err != nil {
		return ""
	}
	return host
}

// Addr is the address on which the embedded server listens, as a URL for
// another process's [Config]; empty where it does not.
func (b *Bus) Addr() string {
	if b.server == nil {
		return ""
	}
	return b.server.url()
}

// Close ends all watches and leases (without releasing the leases), drains the
// connection, stops the embedded server and waits for it. It may be called
// more than once.
func (b *Bus) Close() error {
	b.closeOnce.Do(func() { b.closeErr = b.close() })
	return b.closeErr
}

// start runs f in a goroutine that Close waits for; f ends with the bus's life.
// It is false if the bus is closed: then f does not run.
func (b *Bus) start(f func()) bool {
	b.mu.Lock() // or f could start while Close begins to wait
	defer b.mu.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.running.Go(f)
	return true
}

func (b *Bus) close() error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	b.running.Wait()
	if b.conn != nil {
		_ = b.conn.Drain() // or closes it, where there is no connection to drain
		<-b.closed
	}
	if b.server != nil {
		return b.server.stop()
	}
	return nil
}

// reconnected returns a channel that closes at the next reconnect.
func (b *Bus) reconnected() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.back
}

func (b *Bus) onReconnect(conn *nats.Conn) {
	b.mu.Lock()
	close(b.back)
	b.back = make(chan struct{})
	b.mu.Unlock()
	b.log.Info("reconnected to nats", zap.String("url", conn.ConnectedUrlRedacted()))
}

func (b *Bus) onDisconnect(_ *nats.Conn, err error) {
	if b.life.Err() == nil {
		b.log.Warn("connection to nats lost", zap.Error(err))
	}
}

func (b *Bus) onError(_ *nats.Conn, sub *nats.Subscription, err error) {
	field := zap.Skip()
	if sub != nil {
		field = zap.String("subject", sub.Subject)
	}
	if errors.Is(err, nats.ErrPermissionViolation) {
		b.log.Error("nats denies this service a subject: give it the credentials of its own kind, and nats the users that nereid credentials has made for this release", field, zap.Error(err))
		return
	}
	b.log.Warn("nats reports an error", field, zap.Error(err))
}

// Redacted hides the passwords in a list of servers.
func Redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		if u, err := url.Parse(strings.TrimSpace(text)); err == nil {
			list[i] = u.Redacted()
		}
	}
	return strings.Join(list, ",")
}

// unavailable makes the error of a store that cannot be used.
func unavailable(err error, format string, args ...any) error {
	return errs.Wrap(errs.StateUnavailable, err, format, args...)
}
