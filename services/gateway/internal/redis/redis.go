// Package redis stores values in a Redis, which may be slow, unavailable or full. In that case there is simply
// no value, after a bounded time, and nothing fails.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	client "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
)

// Options say where a Redis is and how long to wait for it.
type Options struct {
	Address            string // host:port
	Username, Password string
	Database           int
	// Connect, Socket and Wait are the timeouts for a new connection, for an answer, and for a free connection.
	// All are positive.
	Connect, Socket, Wait time.Duration
	// Connections is the maximum number of connections, and also of values that are being written.
	Connections int
	TLS         *tls.Config // nil means no TLS
}

// Values stores values in a Redis. While the Redis is unavailable it is not used, and one probe at a time
// detects when it is available again. It is safe for concurrent use.
type Values struct {
	client  *client.Client
	most    time.Duration // for a whole operation
	log     *zap.Logger
	counts  counts
	away    atomic.Bool
	doubted chan struct{} // buffers one signal
	refused atomic.Int64  // when a refusal was last logged, in ns since 1970
	writes  chan struct{} // has an element for each value that is being written
}

// New makes the client of a Redis, which need not be available yet. It counts as available until Run finds that
// it is not.
func New(o Options, log *zap.Logger) *Values {
	logging.Disable() // failures are logged here, once
	return &Values{
		client: client.NewClient(&client.Options{
			Addr: o.Address, Username: o.Username, Password: o.Password, DB: o.Database, TLSConfig: o.TLS,
			DialTimeout: o.Connect, ReadTimeout: o.Socket, WriteTimeout: o.Socket, PoolTimeout: o.Wait, ContextTimeoutEnabled: true,
			PoolSize: o.Connections, MaxActiveConns: o.Connections, PipelinePoolSize: -1,
			MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}),
		most: o.Connect + o.Socket + o.Wait, log: log, counts: newCounts(),
		doubted: make(chan struct{}, 1), writes: make(chan struct{}, o.Connections),
	}
}

// probes is the interval between probes of an unavailable Redis.
const probes = time.Second

// Run checks whether the Redis is available, at the start and after each failure, until ctx is done. It then
// waits for the writes in progress and closes the connections.
func (v *Values) Run(ctx context.Context) error {
	defer func() {
		v.away.Store(true)
		for range cap(v.writes) {
			v.writes <- struct{}{} // no further write starts
		}
		_ = v.client.Close() // nothing is left to lose
	}()
	v.check()
	for {
		select {
		case <-v.doubted:
		case <-ctx.Done():
			return nil
		}
		for err := v.probe(ctx); err != nil; err = v.probe(ctx) {
			if ctx.Err() != nil {
				return nil
			}
			v.fail(err)
			select {
			case <-time.After(probes):
			case <-ctx.Done():
				return nil
			}
		}
		if v.away.CompareAndSwap(true, false) {
			v.log.Info("the response cache's Redis is back", zap.String("address", v.client.Options().Addr))
		}
	}
}

func (v *Values) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.most)
	defer cancel()
	return v.client.Ping(ctx).Err()
}

// check makes Run check whether the Redis is available.
func (v *Values) check() {
	select {
	case v.doubted <- struct{}{}:
	default:
	}
}

// fail records that the Redis cannot be reached or refuses the login.
func (v *Values) fail(err error) {
	if v.away.CompareAndSwap(false, true) {
		v.log.Warn("the response cache's Redis is away: responses are neither looked for nor kept until it is back",
			zap.String("address", v.client.Options().Addr), zap.Error(err))
	}
}

// Get returns a value of at most most bytes, or nil if there is none or Redis does not return it in time.
func (v *Values) Get(ctx context.Context, name string, most int) []byte {
	if v.away.Load() {
		v.counts.lookups.skipped.Inc()
		return nil
	}
	limit := v.most
	if deadline, ok := ctx.Deadline(); ok { // most of that time is for the model
		limit = min(limit, time.Until(deadline)/4)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A range bounds how much memory a foreign value can use here.
	value, err := v.client.GetRange(bounded, name, 0, int64(most)).Bytes()
	switch {
	case err != nil && ctx.Err() != nil:
		v.counts.lookups.canceled.Inc()
		return nil
	case err != nil:
		v.counts.lookups.failed.Inc()
		if limit == v.most {
			v.note(err)
		}
		v.check()
		return nil
	case len(value) == 0 || len(value) > most:
		v.counts.lookups.absent.Inc()
		return nil
	}
	v.counts.lookups.found.Inc()
	return value
}

// Set stores what value returns, in a separate goroutine, unless the Redis is unavailable or the maximum number
// of values is already being written.
func (v *Values) Set(name string, value func() []byte) {
	if v.away.Load() {
		v.counts.insertions.skipped.Inc()
		return
	}
	select {
	case v.writes <- struct{}{}:
	default:
		v.counts.insertions.skipped.Inc()
		return
	}
	b := value()
	if b == nil {
		<-v.writes
		return
	}
	go func() {
		defer func() { <-v.writes }()
		ctx, cancel := context.WithTimeout(context.Background(), v.most)
		defer cancel()
		if err := v.client.Set(ctx, name, b, 0).Err(); err != nil {
			v.counts.insertions.failed.Inc()
			v.note(err)
			v.check()
			return
		}
		v.counts.insertions.kept.Inc()
	}()
}

// refusals is how long no further refusal is logged after one.
const refusals = time.Minute

// note records the error of an operation that had its full time. If Redis answered with an error, for example
// that its memory is full, or all connections are in use, Redis still counts as available.
func (v *Values) note(err error) {
	var answer client.Error
	switch {
	case errors.Is(err, client.ErrPoolTimeout), errors.Is(err, client.ErrPoolExhausted):
	case !errors.As(err, &answer):
		v.fail(err)
	default:
		now, last := time.Now().UnixNano(), v.refused.Load()
		if now-last > int64(refusals) && v.refused.CompareAndSwap(last, now) {
			v.log.Warn("the response cache's Redis refuses a command", zap.String("address", v.client.Options().Addr), zap.Error(err))
		}
	}
}
