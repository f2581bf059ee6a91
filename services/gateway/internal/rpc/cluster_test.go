package rpc_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// asked is a cluster of which there is one thing to tell, or a failure.
type asked struct{ failure error }

func (c asked) Status(context.Context) (*nereidv1.ClusterStatus, error) {
	if c.failure != nil {
		return nil, c.failure
	}
	return told(), nil
}

func told() *nereidv1.ClusterStatus {
	return &nereidv1.ClusterStatus{Problems: []string{"no worker is there to run models"}}
}

func TestClusterIsToldToThoseWhoMayAsk(t *testing.T) {
	s := serveWith(t, rpc.Options{
		Cluster: asked{}, Options: path.Options{Restricted: core.Restrictions{core.RepositoryAPI: {Header: "admin", Value: "secret"}}},
	})
	client := nereidv1.NewClusterServiceClient(s.conn)
	if _, err := client.Status(t.Context(), &nereidv1.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without the header: %v", err)
	}
	got, err := client.Status(metadata.AppendToOutgoingContext(t.Context(), "triton-grpc-protocol-admin", "secret"), &nereidv1.StatusRequest{})
	if diff := cmp.Diff(told(), got, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("with the header: %v (-want +got):\n%s", err, diff)
	}
}

func TestClusterThatDoesNotRespond(t *testing.T) {
	s := serveWith(t, rpc.Options{Cluster: asked{failure: errs.New(errs.StateUnavailable, "the store is away")}})
	_, err := nereidv1.NewClusterServiceClient(s.conn).Status(t.Context(), &nereidv1.StatusRequest{})
	if got := status.Convert(err); got.Code() != codes.Unavailable || got.Message() != "the store is away" {
		t.Errorf("Status = %v", err)
	}
	without := serve(t)
	if _, err := nereidv1.NewClusterServiceClient(without.conn).Status(t.Context(), &nereidv1.StatusRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("of a gateway without a registry: %v", err)
	}
}
