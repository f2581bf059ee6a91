package registry

import (
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
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
