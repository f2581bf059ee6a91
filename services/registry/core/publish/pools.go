package publish

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Pool is a set of workers with a scheduler of their own, and the models that
// run there.
type Pool struct {
	Name string
	// Models are those that do not name a pool themselves.
	Models []string
	// Labels are those that the pool's workers must carry.
	Labels map[string]string
}

// Pools are those that are configured; others have their names alone.
type Pools []Pool

// OfModel names the pool that a model of a configuration should be in.
func (p Pools) OfModel(id infer.ModelID, config *inference.ModelConfig) string {
	listed := ""
	if i := slices.IndexFunc(p, func(pool Pool) bool { return slices.Contains(pool.Models, id.Name) }); i >= 0 {
		listed = p[i].Name
	}
	return cmp.Or(modelconfig.PlacementOf(config).Pool, listed, infer.DefaultPool)
}

// OfWorker names the pool of a worker with these labels; none if it does not
// carry those of its pool.
func (p Pools) OfWorker(labels map[string]string) string {
	name := cmp.Or(labels[infer.PoolLabel], infer.DefaultPool)
	if i := slices.IndexFunc(p, func(pool Pool) bool { return pool.Name == name }); i >= 0 {
		for key, value := range p[i].Labels {
			if labels[key] != value {
				return ""
			}
		}
	}
	return name
}

// Values gives the values of the bucket pools, by key: those that are
// configured, and the default one.
func (p Pools) Values() map[string]*nereidv1.PoolValue {
	values := map[string]*nereidv1.PoolValue{infer.DefaultPool: {Schema: nereidv1.Schema, Name: infer.DefaultPool}}
	for _, pool := range p {
		values[pool.Name] = &nereidv1.PoolValue{Schema: nereidv1.Schema, Name: pool.Name, WorkerLabels: pool.Labels, Models: pool.Models}
	}
	return values
}

// PoolOf names the pool that a value has requests sent to.
func PoolOf(v *nereidv1.ModelValue) string { return cmp.Or(v.GetPool(), infer.DefaultPool) }

// poolValue writes a pool's name into a model's value.
func poolValue(name string) string {
	if name == infer.DefaultPool {
		return ""
	}
	return name
}

// WithPool is the value of a model whose requests go to another pool.
func WithPool(v *nereidv1.ModelValue, pool string) *nereidv1.ModelValue {
	next := proto.CloneOf(v)
	next.Pool = poolValue(pool)
	return next
}
