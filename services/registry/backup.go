package registry

import (
	"context"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// stateBackup is what the registry's own buckets held last, under any leader. If
// the store loses it, the next leader writes it again. It is safe for concurrent use.
type stateBackup struct {
	mu          sync.Mutex
	models      map[string]*nereidv1.ModelValue      // guarded by mu
	assignments map[string]*nereidv1.AssignmentValue // guarded by mu
}

func newStateBackup() *stateBackup {
	return &stateBackup{models: make(map[string]*nereidv1.ModelValue), assignments: make(map[string]*nereidv1.AssignmentValue)}
}

// follow keeps the memory until ctx is done.
func (b *stateBackup) follow(ctx context.Context, all *buckets) {
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() { record(ctx, all.models, b, b.models) })
	both.Go(func() { record(ctx, all.assignments, b, b.assignments) })
}

func record[T proto.Message](ctx context.Context, b *bus.Bucket[T], m *stateBackup, values map[string]T) {
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
func (b *stateBackup) setModel(key string, v *nereidv1.ModelValue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.models[key] = v
}

// values returns copies of both maps.
func (b *stateBackup) values() (models map[string]*nereidv1.ModelValue, assignments map[string]*nereidv1.AssignmentValue) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.models), maps.Clone(b.assignments)
}
