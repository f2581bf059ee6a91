package core

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/pending"
)

// Dispatcher takes requests towards the scheduler of their pool.
type Dispatcher interface {
	// Submit hands a request over. If it returns nil the request belongs to
	// the scheduler, which answers it through the gateway's Responder; on an
	// error the caller still owns it. Submit does not block.
	Submit(*infer.Request) error
	// Cancel says that nobody waits for the request any more. It may be
	// unknown or over.
	Cancel(infer.RequestID)
}

// Gateway answers the calls of the front ends. It is safe for concurrent use.
type Gateway struct {
	info       ServerInfo
	dispatcher Dispatcher
	statistics StatisticsSource
	repository Repository
	pending    *pending.Table
	clock      mono.Clock
	pool       *tensor.Pool
	strict     bool
	snapshot   atomic.Pointer[Snapshot]
	started    atomic.Bool // every model has been ready or failed
	draining   atomic.Bool
	waiters    sync.Pool // of *pending.Unary
}

// Deps are what a Gateway works with.
type Deps struct {
	Dispatcher Dispatcher
	Statistics StatisticsSource
	// Repository may be nil; then models are not loaded or unloaded on request.
	Repository Repository
	Pending    *pending.Table
	Clock      mono.Clock
	Pool       *tensor.Pool
	// StrictReadiness makes the server ready only while every model is;
	// without it, from the end of the start on.
	StrictReadiness bool
}

// New makes a gateway without models.
func New(info ServerInfo, deps Deps) *Gateway {
	g := &Gateway{
		info: info, dispatcher: deps.Dispatcher, statistics: deps.Statistics, repository: deps.Repository, pending: deps.Pending, clock: deps.Clock,
		pool: deps.Pool, strict: deps.StrictReadiness,
	}
	g.waiters.New = func() any { return pending.NewUnary() }
	g.snapshot.Store(NewSnapshot(0, false, nil))
	return g
}

// Update puts a new snapshot into force for the requests to come.
func (g *Gateway) Update(s *Snapshot) {
	g.snapshot.Store(s)
	if !g.started.Load() && s.Settled() {
		g.started.Store(true)
	}
}

// Started reports whether the start is over: every model has been ready or has
// failed. It stays so.
func (g *Gateway) Started() bool { return g.started.Load() }

// Snapshot returns the present snapshot.
func (g *Gateway) Snapshot() *Snapshot { return g.snapshot.Load() }

// Pool is where front ends get memory for tensors.
func (g *Gateway) Pool() *tensor.Pool { return g.pool }

// Live reports whether the server runs at all.
func (g *Gateway) Live() bool { return true }

// Ready reports whether every model that should serve does or, without strict
// readiness, whether the start is over.
func (g *Gateway) Ready() bool {
	if g.draining.Load() {
		return false
	}
	if g.strict {
		return g.Snapshot().AllReady()
	}
	return g.Started()
}

// Drain refuses new requests and returns when the last one in flight has its
// answer, or with the context's error.
func (g *Gateway) Drain(ctx context.Context) error {
	g.draining.Store(true)
	return g.pending.Drain(ctx)
}

// InFlight is the number of requests that have no final answer yet.
func (g *Gateway) InFlight() int64 { return g.pending.InFlight() }

// NewRequest starts a request for v: identity, model and time of arrival.
func (g *Gateway) NewRequest(v *Version) *infer.Request {
	return &infer.Request{
		Work:     infer.Work{Request: g.pending.NextID(), Attempt: 1, Revision: g.Snapshot().Revision},
		Model:    v.Ref,
		Received: g.clock.Now(),
	}
}

// Infer checks r against v, has it executed and returns its one response,
// which the caller releases, and the version by which it was answered. It takes
// r over in every case. When ctx ends first the request is cancelled wherever
// it is. A request whose content has gone before it was queued is submitted
// once more, for what has taken its place: the version is then another than v.
func (g *Gateway) Infer(ctx context.Context, v *Version, r *infer.Request) (*infer.Response, *Version, error) {
	if err := check(v, r); err != nil {
		r.Release()
		return nil, v, err
	}
	response, returned, err := g.attempt(ctx, v, r)
	if returned == nil {
		return response, v, err
	}
	next := g.reroute(v, returned)
	if next == nil {
		returned.Release()
		return nil, v, err
	}
	response, returned, err = g.attempt(ctx, next, returned)
	if returned != nil {
		returned.Release()
	}
	return response, next, err
}

// reroute turns a request for a content of v's version to the one that serves
// now, and returns that one; nil if there is none that takes it. The steps of a
// sequence belong together and stay.
func (g *Gateway) reroute(v *Version, r *infer.Request) *Version {
	snapshot := g.Snapshot()
	next, err := snapshot.current(v.Ref)
	if err != nil || next.Ref == r.Model || r.Sequence != (infer.Sequence{}) || next.Config.Decoupled || check(next, r) != nil {
		return nil
	}
	r.Model = next.Ref
	r.Work = infer.Work{Request: r.Work.Request, Attempt: r.Work.Attempt + 1, Revision: snapshot.Revision}
	return next
}

// attempt submits r to v and waits for its answer. The request is returned if
// the scheduler gives it back.
func (g *Gateway) attempt(ctx context.Context, v *Version, r *infer.Request) (*infer.Response, *infer.Request, error) {
	// The request is the scheduler's after Submit: keep what is needed.
	work := r.Work
	waiter, _ := g.waiters.Get().(*pending.Unary)
	turn := g.open(work, v, waiter)
	if err := g.submit(r); err != nil {
		r.Release()
		g.pending.Finish(infer.Fail(work, err))
	}
	response, answered, err := waiter.Wait(ctx)
	if !answered {
		response, err = g.abandon(ctx, work, waiter)
	}
	var returned *infer.Request
	if err != nil {
		response, returned = nil, waiter.Returned()
	}
	if turn != nil {
		if response != nil {
			response.Turn = turn
		} else {
			turn()
		}
	}
	waiter.Reset()
	g.waiters.Put(waiter)
	return response, returned, err
}

// open enters a request into the pending table, and returns what passes its
// turn where answers keep the order of requests; nil elsewhere.
func (g *Gateway) open(w infer.Work, v *Version, next infer.Responder) (turn func()) {
	if b := v.Config.Batching; b != nil && b.PreserveOrdering {
		return g.pending.OpenInOrder(w, v.Ref, next).Pass
	}
	g.pending.Open(w, next)
	return nil
}

// submit hands the request over unless the gateway drains. The request is in
// the pending table already: a Drain that begins now waits for it, and one that
// began before is seen here.
func (g *Gateway) submit(r *infer.Request) error {
	if g.draining.Load() {
		return errs.New(errs.Draining, "Server is stopping, scheduler for model has stopped accepting new inference requests").WithModel(r.Model.Name)
	}
	return g.dispatcher.Submit(r)
}

// abandon ends a request whose client is gone or out of time. The final
// answer may have come at the same moment; then that one counts.
func (g *Gateway) abandon(ctx context.Context, w infer.Work, waiter *pending.Unary) (*infer.Response, error) {
	if g.pending.Finish(infer.Fail(w, abandoned(ctx))) {
		g.dispatcher.Cancel(w.Request)
	}
	response, _, err := waiter.Wait(context.WithoutCancel(ctx))
	return response, err
}

func abandoned(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errs.Wrap(errs.DeadlineCompute, ctx.Err(), "the deadline passed before the answer was there")
	}
	return errs.Wrap(errs.Cancelled, ctx.Err(), "")
}

// Server describes the server.
func (g *Gateway) Server() ServerInfo { return g.info }

// Metadata describes a model: all its ready versions, or the one asked for.
func (g *Gateway) Metadata(model, version string) (Metadata, error) {
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

// absent is the index entry of a model without versions: it has failed as a
// whole, or it was never loaded and shows its name only.
func absent(m *Model) IndexEntry {
	if m.Problem == "" {
		return IndexEntry{Name: m.Name}
	}
	return IndexEntry{Name: m.Name, State: infer.Unavailable.String(), Reason: m.Problem}
}

// ModelConfig returns the configuration by which a version serves.
func (g *Gateway) ModelConfig(model, version string) (*modelconfig.Config, error) {
	v, err := g.Snapshot().Resolve(model, version)
	if err != nil {
		return nil, err
	}
	return v.Config, nil
}

// Index lists the repository: one entry per version, or one for a model that
// has none. With readyOnly only ready versions are listed.
func (g *Gateway) Index(readyOnly bool) []IndexEntry {
	entries := []IndexEntry{}
	for _, m := range g.Snapshot().Models() {
		if len(m.Versions) == 0 && !readyOnly {
			entries = append(entries, absent(m))
		}
		for _, v := range m.Versions {
			if readyOnly && v.State != infer.Ready {
				continue
			}
			entries = append(entries, IndexEntry{
				Name: m.Name, Version: strconv.FormatInt(v.Ref.Version, 10), State: v.State.String(), Reason: v.Cause,
			})
		}
	}
	return entries
}
