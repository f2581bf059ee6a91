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

// Dispatcher passes requests to the scheduler of their pool.
type Dispatcher interface {
	// Submit hands a request over. If it returns nil, the scheduler owns the request and completes it through
	// the gateway's Responder; on an error the caller still owns it. Submit does not block.
	Submit(*infer.Request) error
	// Cancel cancels a request, which may be unknown or finished.
	Cancel(infer.RequestID)
}

// Gateway answers the calls of the front ends. It is safe for concurrent use.
type Gateway struct {
	info       ServerInfo
	dispatcher Dispatcher
	reachable  func(pool string) bool
	refused    func() error // why all calls except probes are refused
	statistics func(pool string) StatisticsSource
	missing    func(pool string, err error) // reports missing statistics
	ended      func(pool string, e infer.EnsembleEnd)
	cache      *cache.Cache // for responses of steps; nil if there is none
	repository Repository
	logging    Logging // nil if there are no settings
	requests   *requests.Table
	underway   underway
	limits     stepLimits
	paces      paces
	omissions  omissions
	clock      mono.Clock
	pool       *tensor.Pool
	strict     bool
	snapshot   atomic.Pointer[Snapshot]
	started    atomic.Bool   // the start is over: see Started
	shutdown   chan struct{} // closed when the shutdown starts
	begin      sync.Once     // closes shutdown
	drained    chan struct{} // closed when nothing is in flight any more, or what is will be canceled
	drain      sync.Once     // closes drained
	phase      atomic.Int32  // serving, draining or refusing; it only increases
	failed     atomic.Bool   // there is no repository: see Fail
}

// Deps are a Gateway's dependencies.
type Deps struct {
	Dispatcher Dispatcher
	// Reachable reports whether a pool's scheduler is reachable. If nil, every scheduler is.
	Reachable func(pool string) bool
	// Refused returns why all calls except probes are refused, for example because a policy is missing, or nil.
	// If Refused itself is nil, calls are never refused this way.
	Refused func() error
	// Statistics returns the statistics source of a pool.
	Statistics func(pool string) StatisticsSource
	// StatisticsMissing is called with each pool that is missing from a statistics reply. It may be nil.
	StatisticsMissing func(pool string, err error)
	// EnsembleEnded is called at the end of each request for an ensemble of a pool. It must not block. It may
	// be nil.
	EnsembleEnded func(pool string, e infer.EnsembleEnd)
	// OutputMissing is called with an ensemble's output that no step produced, at most once a second for each
	// output. It must not block. It may be nil.
	OutputMissing func(ensemble infer.ModelRef, output string)
	// Cache answers ensemble steps that equal earlier ones; nil answers none.
	Cache *cache.Cache
	// Repository loads and unloads models on request. If nil, the gateway cannot.
	Repository Repository
	// Logging reads and changes the log settings. If nil, the gateway cannot.
	Logging  Logging
	Requests *requests.Table
	Clock    mono.Clock
	Pool     *tensor.Pool
	// StrictReadiness makes the server ready only while every model is; without it the server is ready once the
	// start is over.
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

// Update replaces the snapshot for new requests. It returns the pools without a reachable scheduler. Call it
// again when these change, since that may complete the start.
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

// Superseded returns nil unless ensemble requests are in flight that use versions which the current snapshot no
// longer has. Otherwise it returns a channel that is closed when some of these requests have ended; the caller
// then asks again.
func (g *Gateway) Superseded() <-chan struct{} { return g.underway.superseded() }

// served reports whether all pools, or without strict readiness any pool, have a reachable scheduler.
func (g *Gateway) served(s *Snapshot, unreachable []string) bool {
	return len(unreachable) == 0 || !g.strict && len(unreachable) < len(s.pools)
}

// Started reports whether the start is over: every model was ready or had failed, and the schedulers were
// reachable. It never becomes false again.
func (g *Gateway) Started() bool { return g.started.Load() }

// Snapshot returns the current snapshot.
func (g *Gateway) Snapshot() *Snapshot { return g.snapshot.Load() }

// Fail declares that the server has no repository and never will. Like Triton after such a start, it is then
// neither live nor ready and refuses all calls that concern models.
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

// Live reports whether the server runs and can become ready.
func (g *Gateway) Live() bool { return !g.failed.Load() }

// Ready reports whether every model that should serve does or, without strict readiness, whether the start is
// over and a scheduler is reachable. A server that refuses all calls is not ready.
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

// Unreachable lists by name the pools that have ready models but no reachable scheduler.
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

// ModelReady reports whether a version accepts requests and has an available instance. As in Triton, an unknown
// version is just not ready; the only errors are a version that is not a number and that of [Gateway.Operable].
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

// unreached returns a pool that the version's requests need and whose scheduler is unreachable, or an empty
// string.
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

// BeginShutdown ends readiness for good. Requests are still served.
func (g *Gateway) BeginShutdown() { g.begin.Do(func() { close(g.shutdown) }) }

// ShutdownBegun returns a channel that BeginShutdown closes.
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

// The phases of a gateway's life.
const (
	serving  = iota
	draining // accepts requests only from connections that were open before: see [Execution.Connected]
	refusing // accepts no requests from clients
)

// BeginDrain ends readiness and refuses requests from new connections.
func (g *Gateway) BeginDrain() {
	g.phase.CompareAndSwap(serving, draining)
	g.BeginShutdown()
}

// Drain does what BeginDrain does, and returns when the requests in flight have completed, or with the
// context's error. It still accepts requests that arrive meanwhile on open connections, and none afterwards.
func (g *Gateway) Drain(ctx context.Context) error {
	defer g.drain.Do(func() { close(g.drained) })
	g.BeginDrain()
	err := g.requests.Drain(ctx)
	g.phase.Store(refusing)
	if err != nil {
		return err
	}
	return g.requests.Drain(ctx) // those that arrived in between
}

// Versions returns the number of model versions with requests in flight.
func (g *Gateway) Versions() int { return g.requests.Versions() }

// Drained returns a channel that is closed at the end of [Gateway.Drain]. Clients whose streams have no
// requests in flight need not be waited for after that.
func (g *Gateway) Drained() <-chan struct{} { return g.drained }

// InFlight returns the number of requests that still lack their final response.
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

// unversioned returns the index entry of a model without versions: one that failed as a whole, or one that was
// never loaded, which shows only its name.
func unversioned(m *Model) IndexEntry {
	if m.Problem == "" {
		return IndexEntry{Namespace: m.Namespace, Name: m.Name}
	}
	return IndexEntry{Namespace: m.Namespace, Name: m.Name, State: infer.Unavailable.String(), Reason: m.Problem}
}

// ModelConfig returns the configuration with which a version serves, including what placement decided.
func (g *Gateway) ModelConfig(model, version string) (*modelconfig.Config, error) {
	v, err := g.Snapshot().Resolve(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config.Shown(v.GPUs), nil
}

// Index lists the repository: one entry per version, or one for a model without versions. With readyOnly it
// lists only ready versions.
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
				cause = v.Away // it is loaded; only its own readiness check fails
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
