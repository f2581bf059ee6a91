package rpc_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func TestRequestsBeyondTheBudgetAreRefused(t *testing.T) {
	budget := core.NewBudget(20_000)
	s, ctx := serveWith(t, rpc.Options{Budget: budget}), t.Context()
	if err := budget.Take(19_000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(100)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a call: %v", err)
	}
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"the requests in flight hold 19000 bytes", ""} {
		if err := stream.Send(addSub(100)); err != nil {
			t.Fatal(err)
		}
		item, err := stream.Recv()
		if err != nil || len(item.ErrorMessage) < len(want) || item.ErrorMessage[:len(want)] != want || (want == "") != (item.ErrorMessage == "") {
			t.Errorf("a stream: %v, %v, want %q", item, err, want)
		}
		if want != "" {
			budget.Give(19_000)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(100)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(10_000)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message larger than the budget: %v", err)
	}
}
