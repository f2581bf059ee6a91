// Package workers keeps a gateway's streams to the workers: one to each that
// the bucket workers names with an address, for as long as it is there.
package workers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Deps are what the streams work with.
type Deps struct {
	Bus      *bus.Bus
	Endpoint *export.Endpoint
	// Peer says how the worker at an address is reached.
	Peer func(address string) link.Peer
	// Lost is called with a worker's incarnation once its lease has ended and
	// its stream is down: it sends no more responses. It does not block.
	Lost func(worker uint64)
	Log  *zap.Logger
}

// Connector keeps the streams. It is safe for concurrent use.
type Connector struct {
	deps         Deps
	epochs       map[string]uint64       // by key, of workers with a lease; owned by Run
	incarnations map[string]*incarnation // by key, of workers that may renew their lease; owned by Run
	running      sync.WaitGroup          // connections

	mu          sync.Mutex
	connections map[uint64]*connection // by epoch; guarded by mu
}

// New returns a connector without streams; Run opens them.
func New(d Deps) *Connector {
	return &Connector{deps: d, epochs: make(map[string]uint64), incarnations: make(map[string]*incarnation), connections: make(map[uint64]*connection)}
}

// Connected returns a channel that is closed when the present stream to a
// worker's incarnation ends; nil if there is none.
func (c *Connector) Connected(worker uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.connections[worker]; m != nil {
		return m.stream
	}
	return nil
}

// Run keeps the streams until ctx is done. It is called once, when the gateway's
// identity is known.
func (c *Connector) Run(ctx context.Context) error {
	d := c.deps
	bucket, err := bus.NewBucket(d.Bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	defer c.running.Wait()
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Err != nil:
			d.Log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", bus.Workers), zap.String("key", e.Key))...)
		case e.Kind == bus.EventPut:
			c.put(ctx, e.Key, e.Value)
		case e.Kind == bus.EventDelete:
			c.endLease(e.Key)
			if !e.Expired { // released: the worker does not renew it
				delete(c.incarnations, e.Key)
			}
		}
	}
	return nil
}

// incarnation outlives its connection: a worker that was suspended or cut off
// renews the same lease. The stream then resumes at the recorded progress;
// without it the worker would retain its responses and refuse streams until the
// counts agree.
type incarnation struct {
	epoch    uint64
	progress export.Progress
}

// connection streams from one incarnation until its lease has ended and its
// stream is down.
type connection struct {
	connector *Connector
	*incarnation
	id      string
	address string
	leased  bool // guarded by the connector's mu
	leaving bool // the worker has announced its stop; guarded by the connector's mu
	// stream is closed when the current stream ends; nil without one; guarded by
	// the connector's mu.
	stream chan struct{}
}

func (c *Connector) put(ctx context.Context, key string, v *nereidv1.WorkerValue) {
	epoch := v.GetEpoch()
	if c.epochs[key] == epoch || v.GetAddress() == "" {
		c.setLeaving(epoch, v.GetLeaving())
		return
	}
	c.endLease(key)
	c.epochs[key] = epoch
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.connections[epoch]; m != nil { // the lease expired and was renewed
		m.leased = true
		return
	}
	if l := c.incarnations[key]; l == nil || l.epoch != epoch {
		c.incarnations[key] = &incarnation{epoch: epoch}
	}
	m := &connection{connector: c, incarnation: c.incarnations[key], id: key, address: v.GetAddress(), leased: true, leaving: v.GetLeaving()}
	c.connections[epoch] = m
	c.running.Go(func() { m.run(ctx) })
}

// setLeaving records whether a worker has announced its stop.
func (c *Connector) setLeaving(epoch uint64, leaving bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.connections[epoch]; m != nil {
		m.leaving = leaving
	}
}

// endLease stops reconnection to a worker unless it renews its lease.
func (c *Connector) endLease(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.connections[c.epochs[key]]; m != nil {
		m.leased = false
	}
	delete(c.epochs, key)
}

// removeUnleased removes a connection without a lease, and reports whether it did.
func (c *Connector) removeUnleased(m *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !m.leased {
		delete(c.connections, m.epoch)
	}
	return !m.leased
}

// The backoff between streams doubles from the first pause to the last, less up
// to a half at random.
const firstPause, lastPause = 20 * time.Millisecond, time.Second

// run keeps a stream to the worker.
func (m *connection) run(ctx context.Context) {
	pause := firstPause
	for !m.connector.removeUnleased(m) {
		if m.once(ctx) {
			pause = firstPause
		}
		if lifecycle.Pause(ctx, pause-rand.N(pause/2)); ctx.Err() != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
	m.connector.deps.Lost(m.epoch)
}

// once runs one stream and reports whether it lasted at least lastPause.
func (m *connection) once(ctx context.Context) bool {
	d := m.connector.deps
	worker := zap.String("worker_id", m.id)
	session, err := d.Endpoint.Dial(ctx, d.Peer(m.address), &m.progress)
	if err != nil {
		d.Log.Debug("cannot open the stream to a worker", append(obs.Err(err), worker)...)
		return false
	}
	d.Log.Info("stream to a worker opened", worker)
	started := time.Now()
	m.setStream(make(chan struct{}))
	err = session.Run(ctx)
	m.setStream(nil)
	m.logEnd(ctx, err)
	return time.Since(started) >= lastPause
}

// setStream records the current stream; nil ends it.
func (m *connection) setStream(stream chan struct{}) {
	m.connector.mu.Lock()
	defer m.connector.mu.Unlock()
	if m.stream != nil {
		close(m.stream)
	}
	m.stream = stream
}

// logEnd logs the end of a stream. It is a warning unless it was announced: the
// worker stops, its lease has ended, or this gateway stops.
func (m *connection) logEnd(ctx context.Context, err error) {
	m.connector.mu.Lock()
	level := zap.WarnLevel
	if m.leaving || !m.leased || ctx.Err() != nil {
		level = zap.InfoLevel
	}
	m.connector.mu.Unlock()
	m.connector.deps.Log.Log(level, "stream to a worker closed", append(obs.Err(err), zap.String("worker_id", m.id))...)
}
