package core

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// Dispatcher takes requests towards the scheduler of their pool.
type Dispatcher interface {
	// Submit hands a request over. If it returns nil the scheduler owns the
	// request and completes it through the gateway's Responder; on an error the
	// caller still owns it. Submit does not block.
	Submit(*infer.Request) error
	// Cancel cancels a request, which may be unknown or finished.
	Cancel(infer.RequestID)
}

// Gateway answers the calls of the front ends. It is safe for concurrent use.
type Gateway struct {
	info       ServerInfo
	dispatcher Dispatcher
	reachable  func(pool string) bool
	refused    func() error // why all calls but probes are
	statistics func(pool string) StatisticsSource
	missing    func(pool string, err error) // of statistics
	ended      func(pool string, e infer.EnsembleEnd)
	cache      *cache.Cache // of steps' responses; nil has none
	repository Repository
	logging    Logging // nil has no settings
	requests   *requests.Table
	underway   underway
	limits     stepLimits
	paces      paces
	omissions  omissions
	clock      mono.Clock
	pool       *tensor.Pool
	strict     bool
	snapshot   atomic.Pointer[Snapshot]
	started    atomic.Bool   // every model has been ready or failed
	shutdown   chan struct{} // closed when readiness ends for good
	begin      sync.Once     // closes shutdown
	drained    chan struct{} // closed when nothing is in flight any more, or is to be cut off
	drain      sync.Once     // closes drained
	phase      atomic.Int32  // serving, draining or refusing; it only grows
	failed     atomic.Bool   // there is no repository: see Fail
}

// Deps are what a Gateway works with.
type Deps struct {
	Dispatcher Dispatcher
	// Reachable reports whether a pool's requests get to a scheduler. It may be
	// nil; then they always do.
	Reachable func(pool string) bool
	// Refused returns why all calls but probes are refused, such as for want of a policy; nil if
	// they are not. It may be nil; then they never are.
	Refused func() error
	// Statistics returns the source for a pool.
	Statistics func(pool string) StatisticsSource
	// StatisticsMissing is called with each pool whose counts a reply lacks. It
	// may be nil.
	StatisticsMissing func(pool string, err error)
	// EnsembleEnded is called with the end of each request for an ensemble of a pool.
	// It may be nil, and does not block.
	EnsembleEnded func(pool string, e infer.EnsembleEnd)
	// OutputMissing is called with an output of an ensemble that no step gave, at most
	// once a second for each. It may be nil, and does not block.
	OutputMissing func(ensemble infer.ModelRef, output string)
	// Cache answers steps of ensembles that are equal to others; nil answers none.
	Cache *cache.Cache
	// Repository may be nil; then models are not loaded or unloaded on request.
	Repository Repository
	// Logging may be nil; then the log's settings are not shown or changed.
	Logging  Logging
	Requests *requests.Table
	Clock    mono.Clock
	Pool     *tensor.Pool
	// StrictReadiness makes the server ready only while every model is;
	// without it, from the end of the start on.
	StrictReadiness bool
}

// New returns a gateway without models.
func New(info ServerInfo, deps Deps) *Gateway {
	g := &Gateway{
		info: info, dispatcher: deps.Dispatcher, reachable: deps.Reachable, refused: deps.Refused, statistics: deps.Statistics, missing: deps.StatisticsMissing,
		repository: deps.Repository, logging: deps.Logging, cache: deps.Cache, requests: deps.Requests, clock: deps.Clock,
		pool: deps.Pool, strict: deps.StrictReadiness, shutdown: make(chan struct{}), drained: make(chan struct{}),
	}
	if g.refused == nil {
		g.refused = func() error { return nil }
	}
	if g.missing == nil {
		g.missing = func(string, error) {}
	}
	if g.ended = deps.EnsembleEnded; g.ended == nil {
		g.ended = func(string, infer.EnsembleEnd) {}
	}
	if g.omissions.report = deps.OutputMissing; g.omissions.report == nil {
		g.omissions.report = func(infer.ModelRef, string) {}
	}
	g.requests.OnRefusal(func(id infer.RequestID) { g.dispatcher.Cancel(id) })
	g.snapshot.Store(NewSnapshot(0, false, nil))
	return g
}

// Update replaces the snapshot for new requests. It returns the pools without a
// reachable scheduler; call it again when these change, since the start may end
// then.
func (g *Gateway) Update(s *Snapshot) (unreachable []string) {
	unreachable = g.unreachable(s)
	g.snapshot.Store(s)
	g.underway.set(s)
	g.paces.keep(s)
	g.omissions.retain(s)
	if !g.started.Load() && s.Settled() && g.served(s, unreachable) {
		g.started.Store(true)
	}
	return unreachable
}

// Superseded returns nil unless requests for ensembles are under way that are executed by
// versions which the present snapshot does not have any more. What it returns is closed
// when some of these requests have ended; then the caller asks again.
func (g *Gateway) Superseded() <-chan struct{} { return g.underway.superseded() }

// served reports whether all pools have a scheduler or, without strict
// readiness, any.
func (g *Gateway) served(s *Snapshot, unreachable []string) bool {
	return len(unreachable) == 0 || !g.strict && len(unreachable) < len(s.pools)
}

// Started reports whether the start is over: every model has been ready or has
// failed, and its scheduler was reachable. It never becomes false again.
func (g *Gateway) Started() bool { return g.started.Load() }

// Snapshot returns the current snapshot.
func (g *Gateway) Snapshot() *Snapshot { return g.snapshot.Load() }

// Fail declares that the server has no repository and never gets one. As Triton's after such a
// start it is neither live nor ready, and refuses all calls that concern models.
func (g *Gateway) Fail() { g.failed.Store(true) }

// Operable returns an error after Fail.
func (g *Gateway) Operable() error {
	if g.failed.Load() {
		return errs.New(errs.ServerNotReady, "Server not ready")
	}
	return nil
}

// Pool returns the memory pool of tensors.
func (g *Gateway) Pool() *tensor.Pool { return g.pool }

// Live reports whether the server runs and could get ready.
func (g *Gateway) Live() bool { return !g.failed.Load() }

// Ready reports whether every model that should serve does or, without strict
// readiness, whether the start is over and a scheduler is reachable. A server that refuses all
// calls is not ready.
func (g *Gateway) Ready() bool {
	if g.ShuttingDown() || !g.Live() || g.refused() != nil {
		return false
	}
	s := g.Snapshot()
	if g.strict && !s.AllReady() || !g.strict && !g.Started() {
		return false
	}
	return g.served(s, g.unreachable(s))
}

// Unreachable lists the pools, by name, with ready models and without a reachable
// scheduler.
func (g *Gateway) Unreachable() []string { return g.unreachable(g.Snapshot()) }

func (g *Gateway) unreachable(s *Snapshot) (pools []string) {
	if g.reachable == nil {
		return nil
	}
	for _, pool := range s.pools {
		if !g.reachable(pool) {
			pools = append(pools, pool)
		}
	}
	return pools
}

// ModelReady reports whether a version takes requests, and has an instance that
// is there. As with Triton, one that is unknown is not ready; the only errors are a
// version that is no number and that of [Gateway.Operable].
func (g *Gateway) ModelReady(model, version string) (bool, error) {
	if err := g.Operable(); err != nil {
		return false, err
	}
	v, err := g.Snapshot().Resolve(model, version)
	switch errs.Of(err) {
	case "":
		return v.Away == "" && g.unreached(v) == "" && g.refused() == nil, nil
	case errs.InvalidVersion:
		return false, err
	}
	return false, nil
}

// unreached is a pool that the requests of a version need and cannot get to; empty if
// there is none.
func (g *Gateway) unreached(v *Version) string {
	if v.Composed == nil {
		if g.reachable == nil || g.reachable(v.Pool) {
			return ""
		}
		return v.Pool
	}
	for _, step := range v.Composed.Steps {
		if pool := g.unreached(step); pool != "" {
			return pool
		}
	}
	return ""
}

// BeginShutdown ends readiness for good. Requests are served as before.
func (g *Gateway) BeginShutdown() { g.begin.Do(func() { close(g.shutdown) }) }

// ShutdownBegun is closed by BeginShutdown.
func (g *Gateway) ShutdownBegun() <-chan struct{} { return g.shutdown }

// ShuttingDown reports whether BeginShutdown was called.
func (g *Gateway) ShuttingDown() bool {
	select {
	case <-g.shutdown:
		return true
	default:
		return false
	}
}

// The phases of a gateway's end.
const (
	serving  = iota
	draining // it takes requests from connections that were open before, as [Execution.Connected] says
	refusing // it takes none from clients
)

// BeginDrain ends readiness and refuses requests from new connections.
func (g *Gateway) BeginDrain() {
	g.phase.CompareAndSwap(serving, draining)
	g.BeginShutdown()
}

// Drain does what BeginDrain does, and returns when the requests in flight have completed,
// or with the context's error. Requests that come meanwhile on open connections are taken,
// afterwards none.
func (g *Gateway) Drain(ctx context.Context) error {
	defer g.drain.Do(func() { close(g.drained) })
	g.BeginDrain()
	err := g.requests.Drain(ctx)
	g.phase.Store(refusing)
	if err != nil {
		return err
	}
	return g.requests.Drain(ctx) // those that came between
}

// Versions returns how many model versions have requests in flight.
func (g *Gateway) Versions() int { return g.requests.Versions() }

// Drained returns a channel that is closed at the end of [Gateway.Drain]: a client that
// has a stream without requests need not be waited for.
func (g *Gateway) Drained() <-chan struct{} { return g.drained }

// InFlight is the number of requests without their final response.
func (g *Gateway) InFlight() int64 { return g.requests.InFlight() }

// Server describes the server.
func (g *Gateway) Server() ServerInfo { return g.info }

// Metadata describes a model: all its ready versions, or the requested one.
func (g *Gateway) Metadata(model, version string) (Metadata, error) {
	if err := g.Operable(); err != nil {
		return Metadata{}, err
	}
	s := g.Snapshot()
	v, err := s.Resolve(model, version)
	if err != nil {
		return Metadata{}, err
	}
	m := Metadata{Name: v.Ref.Name, Platform: v.Config.Platform}
	if m.Platform == "" {
		m.Platform = v.Config.Backend
	}
	refs := []infer.ModelRef{v.Ref}
	if version == "" {
		refs = s.models[v.Ref.ID()].ready()
	}
	for _, ref := range refs {
		m.Versions = append(m.Versions, strconv.FormatInt(ref.Version, 10))
	}
	m.Inputs = describe(v.Config, v.Config.Inputs)
	m.Outputs = describe(v.Config, v.Config.Outputs)
	return m, nil
}

// unversioned is the index entry of a model without versions: it has failed as
// a whole, or it was never loaded and shows its name only.
func unversioned(m *Model) IndexEntry {
	if m.Problem == "" {
		return IndexEntry{Namespace: m.Namespace, Name: m.Name}
	}
	return IndexEntry{Namespace: m.Namespace, Name: m.Name, State: infer.Unavailable.String(), Reason: m.Problem}
}

// ModelConfig returns the configuration by which a version serves, with what placement has
// decided.
func (g *Gateway) ModelConfig(model, version string) (*modelconfig.Config, error) {
	v, err := g.Snapshot().Resolve(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config.Shown(v.GPUs), nil
}

// Index lists the repository: one entry per version, or one for a model that
// has none. With readyOnly only ready versions are listed.
func (g *Gateway) Index(readyOnly bool) []IndexEntry {
	entries := []IndexEntry{}
	s := g.Snapshot()
	for _, m := range s.Models() {
		if m.Removed {
			continue
		}
		if len(m.Versions) == 0 && !readyOnly {
			entries = append(entries, unversioned(m))
		}
		for _, v := range m.Versions {
			state, cause := v.State, v.Cause
			if pool := g.unreached(v); state == infer.Ready && pool != "" {
				state, cause = infer.Unavailable, fmt.Sprintf("the gateway reaches no scheduler of the pool %q", pool)
			}
			if state == infer.Ready && v.Away != "" {
				cause = v.Away // it is loaded: only its own readiness says no
			}
			if readyOnly && state != infer.Ready {
				continue
			}
			entries = append(entries, IndexEntry{
				Namespace: m.Namespace, Name: m.Name, Version: strconv.FormatInt(v.Ref.Version, 10), State: state.String(), Reason: cause,
			})
		}
	}
	return entries
}
