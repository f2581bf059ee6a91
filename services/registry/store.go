package registry

import (
	"context"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// buckets are those that the registry reads or writes.
type buckets struct {
	objects     *bus.Objects
	models      *bus.Bucket[*nereidv1.ModelValue]
	workers     *bus.Bucket[*nereidv1.WorkerValue]
	instances   *bus.Bucket[*nereidv1.InstancesValue]
	assignments *bus.Bucket[*nereidv1.AssignmentValue]
	pools       *bus.Bucket[*nereidv1.PoolValue]
	leaders     *bus.Bucket[*nereidv1.LeaderValue]
	gateways    *bus.Bucket[*nereidv1.ServiceValue]
	schedulers  *bus.Bucket[*nereidv1.ServiceValue]
	policies    *bus.Bucket[*nereidv1.PolicyValue]
}

func openBuckets(b *bus.Bus) (*buckets, error) {
	all := buckets{objects: b.Objects()}
	var err error
	if all.policies, err = bus.NewBucket(b, bus.Policies, values[*nereidv1.PolicyValue]()); err != nil {
		return nil, err
	}
	if all.models, err = bus.NewBucket(b, bus.Models, values[*nereidv1.ModelValue]()); err != nil {
		return nil, err
	}
	if all.workers, err = bus.NewBucket(b, bus.Workers, values[*nereidv1.WorkerValue]()); err != nil {
		return nil, err
	}
	if all.instances, err = bus.NewBucket(b, bus.Instances, values[*nereidv1.InstancesValue]()); err != nil {
		return nil, err
	}
	if all.assignments, err = bus.NewBucket(b, bus.Assignments, values[*nereidv1.AssignmentValue]()); err != nil {
		return nil, err
	}
	if all.pools, err = bus.NewBucket(b, bus.Pools, values[*nereidv1.PoolValue]()); err != nil {
		return nil, err
	}
	if all.gateways, err = bus.NewBucket(b, bus.Gateways, values[*nereidv1.ServiceValue]()); err != nil {
		return nil, err
	}
	if all.schedulers, err = bus.NewBucket(b, bus.Schedulers, values[*nereidv1.ServiceValue]()); err != nil {
		return nil, err
	}
	all.leaders, err = bus.NewBucket(b, bus.Leaders, values[*nereidv1.LeaderValue]())
	return &all, err
}

// values is the codec of values, which here reads those of a newer schema too:
// the registry, which replaces values, must see the schema to stop at it,
// where other readers refuse the value.
func values[T nereidv1.Value]() bus.Codec[T] {
	c := bus.Values[T]()
	c.Decode = func(data []byte) (T, error) {
		var none T
		v := none.ProtoReflect().New().Interface().(T)
		err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, v)
		return v, err
	}
	return c
}

// write creates a key or replaces the revision that it has.
func write[T any](ctx context.Context, b *bus.Bucket[T], key string, value T, replaces uint64) (uint64, error) {
	if replaces == 0 {
		return b.Create(ctx, key, value)
	}
	return b.Update(ctx, key, value, replaces)
}

// writeFound writes models as they were found, and notes which of them load for
// the first time.
func (l *leadership) writeFound(ctx context.Context, writes []publish.ModelWrite) error {
	for _, w := range writes {
		served := publish.Serving(l.models.entries[w.Key].Value, l.knowledge(false)) != nil
		if err := l.writeModels(ctx, []publish.ModelWrite{w}); err != nil {
			return err
		}
		delete(l.firstLoads, w.Key)
		if serving := publish.Serving(w.Value, publish.Observed{}); !served && len(w.Value.GetVersions()) > 1 && serving != nil {
			l.firstLoads[w.Key] = true
		}
	}
	return nil
}

func (l *leadership) writeModels(ctx context.Context, writes []publish.ModelWrite) error {
	for _, w := range writes {
		if w.Value == nil {
			if err := l.buckets.models.Delete(ctx, w.Key, w.Replaces); err != nil {
				return err
			}
			l.drainReplaced(w.Key, nil)
			l.rejected.Remove(w.Key)
			l.models.drop(w.Key, w.Replaces)
			continue
		}
		if err := l.writeModel(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// writeModel writes one value, and in place of one that is too large its
// problem: the others must not wait for it.
func (l *leadership) writeModel(ctx context.Context, w publish.ModelWrite) error {
	log := l.log.With(zap.Stringer("model", infer.ParseModelID(w.Key)))
	revision, err := write(ctx, l.buckets.models, w.Key, w.Value, w.Replaces)
	if errs.Of(err) == errs.BodyTooLarge {
		log.Error("model does not fit into its bucket", obs.Err(err)...)
		w.Value = publish.TooLarge(l.models.entries[w.Key].Value, infer.ParseModelID(w.Key), errs.From(err).Msg+": shorten its configuration")
		if proto.Equal(w.Value, l.models.entries[w.Key].Value) {
			return nil
		}
		revision, err = write(ctx, l.buckets.models, w.Key, w.Value, w.Replaces)
	}
	if errs.Of(err) == errs.InvalidParameter {
		log.Error("model cannot be published", obs.Err(err)...)
		return nil
	}
	if err != nil {
		return err
	}
	l.drainReplaced(w.Key, w.Value)
	l.models.put(w.Key, w.Value, revision)
	return nil
}

// stored gives the models of keys that are there.
func (l *leadership) stored(keys []string) publish.Models {
	stored := make(publish.Models, len(keys))
	for _, key := range keys {
		if entry, ok := l.models.entries[key]; ok {
			stored[key] = publish.Model{Value: entry.Value, Revision: entry.Revision}
		}
	}
	return stored
}
