package rpc

import (
	"context"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Cluster tells of the whole cluster: the leading registry.
type Cluster interface {
	Status(context.Context) (*nereidv1.ClusterStatus, error)
}

// cluster passes the question on from callers that may work on the repository.
type cluster struct {
	service *service
	asked   Cluster
}

// Status implements [control.Cluster].
func (c *cluster) Status(ctx context.Context) (*nereidv1.ClusterStatus, error) {
	if err := c.service.allow(ctx, core.RepositoryAPI); err != nil {
		return nil, err
	}
	return c.asked.Status(ctx)
}
