// Package workers maintains a process's streams to the workers that have an
// address in the bucket workers: a gateway's to each of them, and a worker's to
// those from which it fetches.
package workers

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Deps are the dependencies of the streams.
type Deps struct {
	Bus      *bus.Bus
	Endpoint *export.Endpoint
	// Peer returns how to reach the worker at an address.
	Peer func(address string) link.Peer
	// OnDemand opens a stream only when a fetch waits for it (see [Connector.Reach]), rather
	// than one to each worker.
	OnDemand bool
	// Lost is called with a worker's incarnation once its lease has ended and
	// its stream is down: it sends no more responses. It does not block.
	Lost func(worker uint64)
	// Back is called with a worker's incarnation when its lease is seen for the
	// first time, or again. It does not block; nil is nobody.
	Back func(worker uint64)
	Log  *zap.Logger
}

// Connector maintains the streams. It is safe for concurrent use.
type Connector struct {
	deps         Deps
	epochs       map[string]uint64       // by key, of workers with a lease; owned by follow
	incarnations map[string]*incarnation // by key, of workers that may renew their lease; owned by follow
	streams      *lifecycle.DynamicGroup

	mu          sync.Mutex
	connections map[uint64]*connection // by epoch; guarded by mu
}

// New returns a connector without streams; Run opens them.
func New(d Deps) *Connector {
	return &Connector{
		deps: d, epochs: make(map[string]uint64), incarnations: make(map[string]*incarnation),
		streams: lifecycle.NewDynamicGroup(), connections: make(map[uint64]*connection),
	}
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

// Owner returns the id of the worker that holds its lease as an incarnation.
func (c *Connector) Owner(incarnation uint64) (id string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.connections[incarnation]
	if m == nil || !m.leased {
		return "", false
	}
	return m.id, true
}

// Peers returns how the workers are reached that hold their leases and whose device matches, in
// the order of their ids.
func (c *Connector) Peers(match func(*nereidv1.WorkerDevice) bool) (peers []link.Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*connection
	for _, m := range c.connections {
		if m.leased && match(m.device) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *connection) int { return cmp.Compare(a.id, b.id) })
	for _, m := range found {
		peers = append(peers, c.deps.Peer(m.address))
	}
	return peers
}

// Reach opens a stream to a worker, now or when the bucket names it, if the endpoint still
// waits for one then.
func (c *Connector) Reach(worker uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.connections[worker]; m != nil {
		c.start(m)
	}
}

// start runs a connection if it is wanted. The caller holds mu.
func (c *Connector) start(m *connection) {
	if m.running || !c.wanted(m) {
		return
	}
	m.running = true
	c.streams.Add(func(ctx context.Context) error {
		m.run(ctx)
		return nil
	})
}

func (c *Connector) wanted(m *connection) bool {
	return !c.deps.OnDemand || c.deps.Endpoint.Waits(m.epoch)
}

// Run maintains the streams until ctx is done. It is called once, when the process's identity
// is known or before anything is fetched.
func (c *Connector) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.streams.Run(ctx) })
	group.Go(func() error { return c.follow(ctx) })
	return group.Wait()
}

// follow learns from the bucket which workers there are.
func (c *Connector) follow(ctx context.Context) error {
	d := c.deps
	bucket, err := bus.NewBucket(d.Bus, bus.Workers, bus.Values[*nereidv1.WorkerValue]())
	if err != nil {
		return err
	}
	for e := range bucket.Watch(ctx) {
		switch {
		case e.Err != nil:
			d.Log.Error("a bucket's value cannot be read", append(obs.Err(e.Err), zap.String("bucket", bus.Workers), zap.String("key", e.Key))...)
		case e.Kind == bus.EventPut:
			c.put(e.Key, e.Value)
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
	device  *nereidv1.WorkerDevice
	leased  bool // guarded by the connector's mu
	leaving bool // the worker has announced its stop; guarded by the connector's mu
	running bool // there is a stream, or will be; guarded by the connector's mu
	// stream is closed when the current stream ends; nil without one; guarded by
	// the connector's mu.
	stream chan struct{}
}

func (c *Connector) put(key string, v *nereidv1.WorkerValue) {
	epoch := v.GetEpoch()
	if c.epochs[key] == epoch || v.GetAddress() == "" {
		c.setLeaving(epoch, v.GetLeaving())
		return
	}
	c.endLease(key)
	c.epochs[key] = epoch
	if c.deps.Back != nil {
		c.deps.Back(epoch)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.connections[epoch]
	if m == nil { // else the lease expired and was renewed
		if l := c.incarnations[key]; l == nil || l.epoch != epoch {
			c.incarnations[key] = &incarnation{epoch: epoch}
		}
		m = &connection{connector: c, incarnation: c.incarnations[key], id: key, address: v.GetAddress(), device: v.GetDevice(), leaving: v.GetLeaving()}
		c.connections[epoch] = m
	}
	m.leased = true
	c.start(m)
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
	epoch := c.epochs[key]
	delete(c.epochs, key)
	c.mu.Lock()
	m := c.connections[epoch]
	lost := m != nil && !m.running
	if m != nil {
		m.leased = false
	}
	if lost {
		delete(c.connections, epoch)
	}
	c.mu.Unlock()
	if lost {
		c.deps.Lost(epoch)
	}
}

// keep reports whether there should be a stream to the worker. A connection without
// a lease is removed.
func (c *Connector) keep(m *connection) bool {
	c.mu.Lock()
	lost := !m.leased
	m.running = m.leased && c.wanted(m)
	running := m.running
	if lost {
		delete(c.connections, m.epoch)
	}
	c.mu.Unlock()
	if lost {
		c.deps.Lost(m.epoch)
	}
	return running
}

// The backoff between streams doubles from the first pause to the last, less up
// to a half at random.
const firstPause, lastPause = 20 * time.Millisecond, time.Second

// run keeps a stream to the worker.
func (m *connection) run(ctx context.Context) {
	pause := firstPause
	for m.connector.keep(m) {
		if m.once(ctx) {
			pause = firstPause
		}
		if lifecycle.Pause(ctx, pause-rand.N(pause/2)); ctx.Err() != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
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

// logEnd logs the end of a stream. It is a warning unless it was to be expected: the
// worker stops, its lease has ended, nothing was fetched, or this process stops.
func (m *connection) logEnd(ctx context.Context, err error) {
	m.connector.mu.Lock()
	level := zap.WarnLevel
	if m.leaving || !m.leased || ctx.Err() != nil || errors.Is(err, export.ErrIdle) {
		level = zap.InfoLevel
	}
	m.connector.mu.Unlock()
	m.connector.deps.Log.Log(level, "stream to a worker closed", append(obs.Err(err), zap.String("worker_id", m.id))...)
}
