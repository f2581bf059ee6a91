package cluster

import (
	"context"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// runs waits until a worker says that it has these models ready.
func (c *cluster) runs(worker string, models ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	instances, err := bus.NewBucket(c.store, bus.Instances, bus.Values[*nereidv1.InstancesValue]())
	if err != nil {
		c.t.Fatal(err)
	}
	events, err := instances.WatchOwner(ctx, worker)
	if err != nil {
		c.t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, m := range models {
		missing[m] = true
	}
	for e := range events {
		for _, v := range e.Value.GetVersions() {
			if v.GetState() == nereidv1.State_STATE_READY {
				delete(missing, v.GetModel().GetName())
			}
		}
		if len(missing) == 0 {
			return
		}
	}
	c.t.Fatalf("%s does not get %v ready", worker, missing)
}
