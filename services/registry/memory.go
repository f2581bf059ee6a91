package registry

import (
	"context"
	"maps"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// memory is what the registry's own buckets held last, whoever led: should the
// store lose it, the next leader writes it again. It is safe for concurrent use.
type memory struct {
	mu          sync.Mutex
	models      map[string]*nereidv1.ModelValue      // guarded by mu
	assignments map[string]*nereidv1.AssignmentValue // guarded by mu
}

func newMemory() *memory {
	return &memory{models: make(map[string]*nereidv1.ModelValue), assignments: make(map[string]*nereidv1.AssignmentValue)}
}

// follow keeps the memory until ctx is done.
func (m *memory) follow(ctx context.Context, all *buckets) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { remember(ctx, all.models, m, m.models) })
	both.Go(func() { remember(ctx, all.assignments, m, m.assignments) })
}

func remember[T proto.Message](ctx context.Context, b *bus.Bucket[T], m *memory, values map[string]T) {
	for e := range b.Watch(ctx) {
		m.mu.Lock()
		switch {
		case e.Kind == bus.EventPut && e.Err == nil:
			values[e.Key] = e.Value
		case e.Kind == bus.EventDelete:
			delete(values, e.Key)
		}
		m.mu.Unlock()
	}
}

// setModel notes a value that was written, of which the watch may never tell.
func (m *memory) setModel(key string, v *nereidv1.ModelValue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.models[key] = v
}

// held gives what is remembered.
func (m *memory) held() (models map[string]*nereidv1.ModelValue, assignments map[string]*nereidv1.AssignmentValue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.models), maps.Clone(m.assignments)
}

// doubts looks for values that tell of a revision which their bucket has not
// reached: an epoch is the revision at which a lease was acquired, and a lease
// that is acquired anew keeps it. The store has gone back then, to before this
// replica was there to see it.
func (r *Registry) doubts(ctx context.Context, all *buckets) {
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { doubt(ctx, r, all.workers, bus.Workers) })
	watches.Go(func() { doubt(ctx, r, all.gateways, bus.Gateways) })
	watches.Go(func() { doubt(ctx, r, all.schedulers, bus.Schedulers) })
	watches.Go(func() { doubt(ctx, r, all.leaders, bus.Leaders) })
}

func doubt[T interface{ GetEpoch() uint64 }](ctx context.Context, r *Registry, b *bus.Bucket[T], name string) {
	for e := range b.Watch(ctx) {
		if e.Kind != bus.EventPut || e.Err != nil || e.Value.GetEpoch() <= e.Revision {
			continue
		}
		if err := r.bus.Doubt(ctx, name, e.Value.GetEpoch()); err != nil && ctx.Err() == nil {
			r.log.Warn("a bucket that may have gone back cannot be looked at", zap.String("bucket", name), zap.String("key", e.Key), zap.Error(err))
		}
	}
}
