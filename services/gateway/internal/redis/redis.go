// Package redis keeps values in a Redis, which may be slow, gone or full: then there
// is no value, after a bounded time, and nothing fails.
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
	// Connect, Socket and Wait are how long to wait for a new connection, for an answer
	// and for a free connection. All are more than 0.
	Connect, Socket, Wait time.Duration
	// Connections is how many there may be, and how many values may be on their way to
	// Redis.
	Connections int
	TLS         *tls.Config // nil is none
}

// Values has values in a Redis. While that is away it is not asked: one probe at a
// time finds out when it is back. It is safe for concurrent use.
type Values struct {
	client  *client.Client
	most    time.Duration // for all of an operation
	log     *zap.Logger
	counts  counts
	away    atomic.Bool
	doubted chan struct{} // has room for one signal
	refused atomic.Int64  // when a refusal was last logged, in ns since 1970
	writes  chan struct{} // has a value for each that is on its way
}

// New makes values of a Redis, which need not be there yet. Run finds out when it is;
// until then it is taken to be there.
func New(o Options, log *zap.Logger) *Values {
	logging.Disable() // what fails is logged here, once
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

// probes is how long it takes from one probe of an absent Redis to the next.
const probes = time.Second

// Run asks Redis whether it is there, at first and after each failure, until ctx is
// done. Then it waits for the values that are on their way, and closes the
// connections.
func (v *Values) Run(ctx context.Context) error {
	defer func() {
		v.away.Store(true)
		for range cap(v.writes) {
			v.writes <- struct{}{} // none begins any more
		}
		_ = v.client.Close() // nothing is left that could be lost
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

// check has Run find out whether Redis is there.
func (v *Values) check() {
	select {
	case v.doubted <- struct{}{}:
	default:
	}
}

// fail notes that Redis cannot be reached, or does not let us in.
func (v *Values) fail(err error) {
	if v.away.CompareAndSwap(false, true) {
		v.log.Warn("the response cache's Redis is away: responses are neither looked for nor kept until it is back",
			zap.String("address", v.client.Options().Addr), zap.Error(err))
	}
}

// Get returns a value of at most so many bytes; nil if there is none, or Redis does
// not give it in time.
func (v *Values) Get(ctx context.Context, name string, most int) []byte {
	if v.away.Load() {
		v.counts.lookups.skipped.Inc()
		return nil
	}
	limit := v.most
	if deadline, ok := ctx.Deadline(); ok { // of which the model needs the most
		limit = min(limit, time.Until(deadline)/4)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A range bounds what a foreign value can take here.
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

// Set keeps what value returns, in a goroutine of its own, unless Redis is away or as
// many values as there may be connections are on their way.
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

// refusals is how long a refusal that was logged stands for others.
const refusals = time.Minute

// note notes the error of an operation that had all of its time. One that Redis
// answered with, such as that its memory is full, is no reason not to ask again, nor is
// it that all connections are in use.
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
