package scheduler

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
)

const (
	// costsRound is how often changed costs are written.
	costsRound = 30 * time.Second
	// costsTimeout limits reading or writing the costs of one model, and writing all of them at the end.
	costsTimeout = 2 * time.Second
)

// costs stores in the bucket costs how long executions have taken, so that a scheduler that starts knows what the
// last one had learned. Costs apply to one content with one configuration.
type costs struct {
	pool   string
	bucket *bus.Bucket[*nereidv1.CostsValue]
	loop   *dispatch.Loop
	log    *zap.Logger
	wake   chan struct{} // signals that models have changed

	mu     sync.Mutex
	models map[string][]content // by key; guarded by mu
	gone   map[string]bool      // keys of models that are no longer in the repository; guarded by mu

	// Owned by keep, and by flush after it.
	taught    map[infer.ModelRef]bool
	written   map[infer.ModelRef]int // executions that the bucket includes
	revisions map[string]uint64      // at which values were last read or written, by key; 0 is no value
}

// content is a loaded content. Its digest identifies its files and its configuration.
type content struct {
	ref    infer.ModelRef
	digest string
}

func newCosts(b *bus.Bus, pool string, loop *dispatch.Loop, log *zap.Logger) (*costs, error) {
	bucket, err := bus.NewBucket(b, bus.Costs, bus.Values[*nereidv1.CostsValue]())
	return &costs{
		pool: pool, bucket: bucket, loop: loop, log: log, wake: make(chan struct{}, 1),
		models: make(map[string][]content), gone: make(map[string]bool),
		taught: make(map[infer.ModelRef]bool), written: make(map[infer.ModelRef]int), revisions: make(map[string]uint64),
	}, err
}

// know records the value of a model's key; nil means that the model is gone. The core has been notified already.
func (c *costs) know(key string, v *nereidv1.ModelValue) {
	var list []content
	if cmp.Or(v.GetPool(), infer.DefaultPool) == c.pool {
		id := infer.ParseModelID(key)
		list = append(contentsOf(id, v.GetPrevious().GetConfig(), v.GetPrevious().GetVersions()), contentsOf(id, v.GetConfig(), v.GetVersions())...)
	}
	c.mu.Lock()
	if c.gone[key] = v == nil; !c.gone[key] {
		delete(c.gone, key)
	}
	if c.models[key] = list; len(list) == 0 {
		delete(c.models, key)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // it has been woken, and will find the newest
	}
}

// contentsOf are those of versions that are served by a configuration.
func contentsOf(id infer.ModelID, config *inference.ModelConfig, versions []*nereidv1.ModelVersion) (list []content) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(config)
	if err != nil {
		return nil // the core does not know it either
	}
	sum := sha256.Sum256(text)
	for _, v := range versions {
		if v.GetDigest() != "" {
			list = append(list, content{id.Version(v.GetVersion(), v.GetGeneration()), v.GetDigest() + "/" + hex.EncodeToString(sum[:8])})
		}
	}
	return list
}

// keep teaches the core what the bucket knows of each content, once, and now and then writes
// what is learned, until ctx is done. That it fails costs nothing but that it is to be learned
// again.
func (c *costs) keep(ctx context.Context) {
	c.taught, c.written, c.revisions = make(map[infer.ModelRef]bool), make(map[infer.ModelRef]int), make(map[string]uint64)
	tick := time.NewTicker(costsRound)
	defer tick.Stop()
	c.each(ctx, c.teach)
	for {
		select {
		case <-c.wake:
			c.each(ctx, c.teach)
		case <-tick.C:
			c.each(ctx, c.teach) // those that could not be read
			c.each(ctx, c.write)
			c.forget(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// flush writes what was learned last, after keep has returned. The next scheduler may lead the pool already: values
// that it has written are not replaced.
func (c *costs) flush(ctx context.Context) {
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), costsTimeout)
	defer end()
	c.each(ctx, c.write)
}

// each calls a function for each model, and logs errors.
func (c *costs) each(ctx context.Context, do func(context.Context, string, []content) error) {
	c.mu.Lock()
	models := maps.Clone(c.models)
	c.mu.Unlock()
	for key, list := range models {
		bounded, end := context.WithTimeout(ctx, costsTimeout)
		if err := do(bounded, key, list); err != nil && !errors.Is(err, bus.ErrConflict) && ctx.Err() == nil {
			c.log.Warn("what executions take is not kept or not known", append(obs.Err(err), zap.String("model", key))...)
		}
		end()
	}
}

// teach passes the stored costs of contents that are new to the core to it.
func (c *costs) teach(ctx context.Context, key string, list []content) error {
	if !slices.ContainsFunc(list, func(of content) bool { return !c.taught[of.ref] }) {
		return nil
	}
	stored, err := c.bucket.Get(ctx, key)
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return err
	}
	c.revisions[key] = stored.Revision
	for _, of := range list {
		known := costsOf(stored.Value, of)
		if c.taught[of.ref] {
			continue
		}
		if c.taught[of.ref] = true; len(known) > 0 {
			c.loop.Learned(of.ref, known)
		}
	}
	return nil
}

func costsOf(v *nereidv1.CostsValue, of content) []infer.Cost {
	for _, version := range v.GetVersions() {
		if version.GetVersion() == of.ref.Version && version.GetDigest() == of.digest {
			return codec.CostsOf(version.GetCosts())
		}
	}
	return nil
}

// write stores what has been learned about a model, if there is anything new and no other scheduler has written in
// the meantime. If one has, the next round first reads its value: it may include contents that have not run here.
func (c *costs) write(ctx context.Context, key string, list []content) error {
	value, counts, changed := &nereidv1.CostsValue{Schema: nereidv1.Schema}, make([]int, len(list)), false
	for i, of := range list {
		known, executions := c.loop.Costs(of.ref)
		counts[i] = executions
		changed = changed || executions > c.written[of.ref]
		if len(known) > 0 {
			value.Versions = append(value.Versions, &nereidv1.VersionCosts{Version: of.ref.Version, Digest: of.digest, Costs: codec.Costs(known)})
		}
	}
	if !changed || len(value.GetVersions()) == 0 {
		return nil
	}
	revision, err := c.replace(ctx, key, value)
	if errors.Is(err, bus.ErrConflict) {
		for _, of := range list {
			delete(c.taught, of.ref)
		}
	}
	if err != nil {
		return err
	}
	c.revisions[key] = revision
	for i, of := range list {
		c.written[of.ref] = counts[i]
	}
	return nil
}

// replace writes a value over the one with the known revision.
func (c *costs) replace(ctx context.Context, key string, value *nereidv1.CostsValue) (uint64, error) {
	if known := c.revisions[key]; known > 0 {
		return c.bucket.Update(ctx, key, value, known)
	}
	return c.bucket.Create(ctx, key, value)
}

// forget forgets contents that are no longer loaded, and deletes the stored costs of models that are no longer in the
// repository.
func (c *costs) forget(ctx context.Context) {
	c.mu.Lock()
	gone := c.gone
	c.gone = make(map[string]bool)
	known := make(map[infer.ModelRef]bool)
	for _, list := range c.models {
		for _, of := range list {
			known[of.ref] = true
		}
	}
	c.mu.Unlock()
	maps.DeleteFunc(c.taught, func(ref infer.ModelRef, _ bool) bool { return !known[ref] })
	maps.DeleteFunc(c.written, func(ref infer.ModelRef, _ int) bool { return !known[ref] })
	for key := range gone {
		delete(c.revisions, key)
		bounded, end := context.WithTimeout(ctx, costsTimeout)
		if stored, err := c.bucket.Get(bounded, key); err == nil {
			_ = c.bucket.Delete(bounded, key, stored.Revision) // a leftover value is useless but harmless
		}
		end()
	}
}
