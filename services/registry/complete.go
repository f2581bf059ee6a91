package registry

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// Complete has the worker that listens at an address, empty for the one of this
// process, run the code of a model that completes its own configuration. Its
// errors are those of [control.Complete].
type Complete func(ctx context.Context, address string, d control.Draft) ([]byte, error)

// completer chooses workers that run models' code. It is safe for concurrent use.
type completer struct {
	complete Complete
	pools    publish.Pools
	// alone is whether the one worker is in this process: it needs no lease to be
	// called.
	alone bool

	mu      sync.Mutex
	workers map[string][]string // their addresses by pool; replaced as a whole; guarded by mu
	known   chan struct{}       // closed when workers is known to a leadership; guarded by mu
}

func newCompleter(complete Complete, pools publish.Pools, alone bool) *completer {
	return &completer{complete: complete, pools: pools, alone: alone, known: make(chan struct{})}
}

// asker is ask, or nil where nobody may be asked.
func (c *completer) asker() repo.Ask {
	if c.complete == nil {
		return nil
	}
	return c.ask
}

// ask has a worker of the model's pool complete a configuration. If it cannot be
// reached, or lacks the backend, the next is called.
func (c *completer) ask(ctx context.Context, d control.Draft) ([]byte, error) {
	if c.alone {
		return c.complete(ctx, "", d)
	}
	config := new(inference.ModelConfig)
	if err := protojson.Unmarshal(d.Config, config); err != nil {
		return nil, errs.Wrap(errs.Bug, err, "a configuration cannot be read that was written to be completed: %v", err)
	}
	id := infer.ModelID{Namespace: d.Model.Namespace, Name: d.Model.Name}
	pool := c.pools.OfModel(id, config)
	var lacking, unreachable error
	for _, address := range c.addresses(ctx, pool) {
		completed, failed := c.complete(ctx, address, d)
		switch reason := errs.Of(failed); {
		case failed == nil || ctx.Err() != nil:
			return completed, failed
		case reason == errs.Unsupported:
			lacking = failed
		case reason == errs.StateUnavailable || reason == errs.Draining:
			unreachable = errs.Wrap(errs.NoWorker, failed, "no worker of the pool %s could run the model's auto_complete_config: %s", pool, errs.From(failed).Msg)
		default:
			return nil, failed
		}
	}
	switch {
	case unreachable != nil:
		return nil, unreachable
	case lacking != nil:
		return nil, lacking
	}
	return nil, errs.New(errs.NoWorker, "the pool %s has no worker that could run the model's auto_complete_config: it is tried again when one is there", pool)
}

// addresses are those of the pool's workers, as soon as these are known.
func (c *completer) addresses(ctx context.Context, pool string) []string {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	select {
	case <-known:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers[pool]
}

// reset has no worker be known, at the start of a leadership.
func (c *completer) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers, c.known = nil, make(chan struct{})
}

// follow takes the workers that there are, in the order of their ids. It reports
// whether one came that could not be called before.
func (c *completer) follow(workers map[string]*nereidv1.WorkerValue) (more bool) {
	next := make(map[string][]string)
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		w := workers[id]
		if pool := c.pools.OfWorker(w.GetLabels()); w.GetAddress() != "" && !w.GetLeaving() {
			next[pool] = append(next[pool], w.GetAddress())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for pool, addresses := range next {
		for _, address := range addresses {
			more = more || !slices.Contains(c.workers[pool], address)
		}
	}
	if c.workers == nil {
		close(c.known)
	}
	c.workers = next
	return more
}
