package rpc

import (
	"context"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Cluster returns the state of the whole cluster to clients that may use the repository API; the registry's
// leader implements it.
type Cluster interface {
	Status(context.Context) (*nereidv1.ClusterStatus, error)
}

// seenCluster limits what callers see of the cluster. A tenant limited to some models sees only those and their
// queues, and neither machines nor problems, which may name other tenants' models.
type seenCluster struct{ Cluster }

// Status implements Cluster.
func (c seenCluster) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	all, err := c.Cluster.Status(ctx)
	caller := path.CallOf(ctx)
	if err != nil || caller.SeesAll() {
		return all, err
	}
	seen := new(nereidv1.ClusterStatus)
	for _, m := range all.GetModels() {
		if caller.Sees(m.GetName()) {
			seen.Models = append(seen.Models, m)
		}
	}
	for _, q := range all.GetQueues() {
		if caller.Sees(q.GetModel().GetName()) {
			seen.Queues = append(seen.Queues, q)
		}
	}
	return seen, nil
}
