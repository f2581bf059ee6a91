package rpc

import (
	"context"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Cluster returns the state of the whole cluster to clients that may use the
// repository API: the leading registry.
type Cluster interface {
	Status(context.Context) (*nereidv1.ClusterStatus, error)
}
