package registry

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/remote/control"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Registry is one replica of the registry service.
type Registry struct {
	cfg      Config
	bus      *bus.Bus
	log      *zap.Logger
	roots    []string // of the repositories, absolute
	scanner  *repo.Scanner
	terms    *terms
	epoch    uint64 // of the last term, 0 before the first; Run's alone
	presence *presence
	memory   *memory
	queues   Queues
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
	return &Registry{cfg: cfg, bus: deps.Bus, log: deps.logger(), roots: roots, scanner: repo.New(roots, cfg.reading()), terms: newTerms(), presence: newPresence(), memory: newMemory(), queues: deps.Queues}, nil
}

// Ready reports whether this replica does what it should: as the leader, that
// the whole scan is published; else that another leads.
func (r *Registry) Ready() bool { return r.presence.ready.Load() }

// RegisterControl has a server take loads and unloads for this replica, and tell
// of the cluster: see [control.RegisterRegistry].
func (r *Registry) RegisterControl(s grpc.ServiceRegistrar) {
	failed := func(err error) { r.log.Error("call failed", obs.Err(err)...) }
	control.RegisterRegistry(s, r, failed)
	control.RegisterCluster(s, r, failed)
}

// startPatience is for how long the start waits for an object store that does not
// answer: one that is started at the same time, or that a replica finds away
// when it is started again.
const startPatience = 30 * time.Second

// check reports a repository that cannot be listed, of one in a store that may
// be there in a moment only when that has passed.
func (r *Registry) check(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for told := false; ; told = true {
		err := r.scanner.Check(ctx)
		switch {
		case err == nil || ctx.Err() != nil || !errs.Of(err).Retryable():
			return err
		case waiting.Err() != nil:
			return errs.Wrap(errs.Of(err), err, "%v\nThe start has waited for %v", err, startPatience)
		case !told:
			r.log.Warn("waiting for a model repository", obs.Err(err)...)
		}
		lifecycle.Pause(waiting, r.cfg.Retry)
	}
}

// Run makes the store's buckets, keeps them there, and leads or waits to lead until ctx
// ends, which gives nil, or until a later registry runs under its id
// (already_exists). Other errors come from the start alone: a repository
// that cannot be listed (config_invalid, or the reason of its object store,
// which is waited for a while) or a store that cannot be set up
// (state_unavailable). Later troubles are logged and tried again, since
// serving goes on without a registry. Run must be called once.
func (r *Registry) Run(ctx context.Context) error {
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.bus.EnsureBuckets(ctx); err != nil {
		return err
	}
	all, err := openBuckets(r.bus)
	if err != nil {
		return err
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var beside sync.WaitGroup
	defer beside.Wait() // until ctx is done
	beside.Go(func() {
		if err := r.appear(ctx); err != nil {
			giveUp(err)
		}
	})
	beside.Go(func() { r.bus.KeepBuckets(ctx) })
	beside.Go(func() { r.memory.follow(ctx, all) })
	beside.Go(func() { r.doubts(ctx, all) })
	defer r.presence.set(false)
	defer r.terms.set(nil, false)
	for ctx.Err() == nil {
		if err := r.elect(ctx, all); err != nil && ctx.Err() == nil {
			r.log.Warn("term as leader ended", obs.Err(err)...)
			lifecycle.Pause(ctx, r.cfg.Retry)
		}
	}
	if cause := context.Cause(ctx); errs.Of(cause) == errs.AlreadyExists {
		return cause
	}
	return nil
}
