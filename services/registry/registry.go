package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Registry is one replica of the registry service.
type Registry struct {
	cfg       Config
	bus       *bus.Bus
	log       *zap.Logger
	pools     publish.Pools // of cfg
	roots     []string      // of the repositories, absolute
	scanner   *repo.Scanner
	leader    *leaderState
	epoch     uint64 // of the last leadership, 0 before the first; Run's alone
	readiness *readinessFlag
	backup    *stateBackup
	queues    Queues
	completer *completer
}

// New makes a registry. It opens nothing and starts nothing. The error is
// [Config.Validate]'s.
func New(cfg Config, deps Deps) (*Registry, error) {
	if err := errors.Join(cfg.Complete(), cfg.Validate()); err != nil {
		return nil, err
	}
	roots, err := cfg.roots()
	if err != nil {
		return nil, err
	}
	pools, err := cfg.pools()
	if err != nil {
		return nil, err
	}
	reading, c := cfg.reading(), newCompleter(deps.Complete, pools, cfg.Address == "")
	reading.Ask = c.asker()
	return &Registry{
		cfg: cfg, bus: deps.Bus, log: deps.logger(), pools: pools, roots: roots, scanner: repo.New(roots, reading), completer: c,
		leader: newLeaderState(), readiness: newReadinessFlag(), backup: newStateBackup(), queues: deps.Queues,
	}, nil
}

// Ready reports whether this replica does what it should: as the leader, that
// the whole scan is published; else that another leads.
func (r *Registry) Ready() bool { return r.readiness.ready.Load() }

// RegisterControl has a server take loads and unloads for this replica, and tell
// of the cluster: see [control.RegisterRegistry].
func (r *Registry) RegisterControl(s grpc.ServiceRegistrar) {
	failed := func(err error) { r.log.Error("call failed", obs.Err(err)...) }
	control.RegisterRegistry(s, r, failed)
	control.RegisterCluster(s, r, failed)
}

// storeStartTimeout is for how long the start waits for an object store that does not
// answer: one that is started at the same time, or that a replica finds away
// when it is started again.
const storeStartTimeout = 30 * time.Second

// check reports a repository that cannot be listed, of one in a store that may
// be reachable soon only when storeStartTimeout has passed.
func (r *Registry) check(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, storeStartTimeout)
	defer cancel()
	for logged := false; ; logged = true {
		err := r.scanner.Check(ctx)
		switch {
		case err == nil || ctx.Err() != nil || !errs.Of(err).Retryable():
			return err
		case waiting.Err() != nil:
			return errs.Wrap(errs.Of(err), err, "%v\nThe start has waited for %v", err, storeStartTimeout)
		case !logged:
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
		if err := r.keepRegistered(ctx); err != nil {
			giveUp(err)
		}
	})
	beside.Go(func() { r.bus.KeepBuckets(ctx) })
	beside.Go(func() { r.backup.follow(ctx, all) })
	defer r.readiness.set(false)
	defer r.leader.set(nil, false)
	for ctx.Err() == nil {
		if err := r.elect(ctx, all); err != nil && ctx.Err() == nil {
			r.log.Warn("leadership ended", obs.Err(err)...)
			lifecycle.Pause(ctx, r.cfg.Retry)
		}
	}
	if cause := context.Cause(ctx); errs.Of(cause) == errs.AlreadyExists {
		return cause
	}
	return nil
}
