package registry

import (
	"context"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Registry is one replica of the registry service.
type Registry struct {
	cfg     Config
	bus     *bus.Bus
	log     *zap.Logger
	roots   []string // of the repositories, absolute
	scanner *repo.Scanner
	terms   *terms
	epoch   uint64 // of the last term, 0 before the first; Run's alone
	ready   atomic.Bool
}

// New makes a registry. It opens nothing and starts nothing. The error is
// [Config.Validate]'s.
func New(cfg Config, deps Deps) (*Registry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	roots, err := cfg.roots()
	if err != nil {
		return nil, err
	}
	return &Registry{cfg: cfg, bus: deps.Bus, log: deps.logger(), roots: roots, scanner: repo.New(roots, cfg.reading()), terms: newTerms()}, nil
}

// Ready reports whether this replica does what it should: as the leader, that
// the whole scan is published; else that another leads.
func (r *Registry) Ready() bool { return r.ready.Load() }

// Run makes the store's buckets, and then leads or waits to lead until ctx
// ends, which gives nil. Other errors come from the start alone: a repository
// that cannot be listed (config_invalid) or a store that cannot be set up
// (state_unavailable). Later troubles are logged and tried again, since
// serving goes on without a registry. Run must be called once.
func (r *Registry) Run(ctx context.Context) error {
	if err := r.scanner.Check(); err != nil {
		return err
	}
	if err := r.bus.EnsureBuckets(ctx); err != nil {
		return err
	}
	all, err := openBuckets(r.bus)
	if err != nil {
		return err
	}
	defer r.ready.Store(false)
	defer r.terms.set(nil, false)
	for ctx.Err() == nil {
		if err := r.elect(ctx, all); err != nil && ctx.Err() == nil {
			r.log.Warn("term as leader ended", obs.Err(err)...)
			lifecycle.Pause(ctx, r.cfg.Retry)
		}
	}
	return nil
}
