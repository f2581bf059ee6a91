package control

import (
	"context"
	"sync"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Incarnations maps the incarnations of a service's processes to their ids while it runs. It is
// safe for concurrent use.
type Incarnations struct {
	watch func(context.Context, func(id string, incarnation uint64)) error

	mu     sync.Mutex
	owners map[uint64]string // by incarnation; guarded by mu
	latest map[string]uint64 // incarnations by id; guarded by mu
}

// WorkerIncarnations makes one that reads the workers' leases.
func WorkerIncarnations(b *bus.Bus) *Incarnations {
	return newIncarnations(watchLeases[*nereidv1.WorkerValue](b, bus.Workers))
}

// GatewayIncarnations makes one that reads the gateways' leases.
func GatewayIncarnations(b *bus.Bus) *Incarnations {
	return newIncarnations(watchLeases[*nereidv1.ServiceValue](b, bus.Gateways))
}

func newIncarnations(watch func(context.Context, func(string, uint64)) error) *Incarnations {
	return &Incarnations{watch: watch, owners: make(map[uint64]string), latest: make(map[string]uint64)}
}

// watchLeases returns a function that reports who holds the leases of a bucket,
// and 0 for an id without one.
func watchLeases[M interface {
	nereidv1.Value
	GetEpoch() uint64
}](b *bus.Bus, name string) func(context.Context, func(string, uint64)) error {
	return func(ctx context.Context, set func(string, uint64)) error {
		bucket, err := bus.NewBucket(b, name, bus.Values[M]())
		if err != nil {
			return err
		}
		for e := range bucket.Watch(ctx) {
			switch {
			case e.Kind == bus.EventDelete:
				set(e.Key, 0)
			case e.Kind == bus.EventPut && e.Err == nil && e.Value.GetEpoch() == 0: // the very write that acquires the lease
				set(e.Key, e.Revision)
			case e.Kind == bus.EventPut && e.Err == nil:
				set(e.Key, e.Value.GetEpoch())
			}
		}
		return nil
	}
}

// Run watches the leases until ctx is done, which gives nil.
func (i *Incarnations) Run(ctx context.Context) error { return i.watch(ctx, i.set) }

func (i *Incarnations) set(id string, incarnation uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.owners, i.latest[id])
	delete(i.latest, id)
	if incarnation != 0 {
		i.owners[incarnation], i.latest[id] = id, incarnation
	}
}

// Owner returns the id of the process that holds its lease as an incarnation.
func (i *Incarnations) Owner(incarnation uint64) (id string, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	id, known = i.owners[incarnation]
	return id, known
}
