package rpc

import (
	"context"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// Cluster returns the state of the whole cluster to clients that may use the
// repository API: the leading registry.
type Cluster interface {
	Status(context.Context) (*nereidv1.ClusterStatus, error)
}

// seenCluster shows callers the part of a cluster that they may see: those that may not use every
// model their own models and queues. Machines, and problems that name others' models, are
// not their business.
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
