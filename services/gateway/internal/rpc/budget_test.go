package rpc_test

import (
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func TestRequestsBeyondTheBudgetAreRefused(t *testing.T) {
	budget := core.NewBudget(20_000)
	s, ctx := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}}), t.Context()
	if err := budget.Reserve(19_000); err != nil {
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
			budget.Release(19_000)
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

// A message that unfolds beyond the budget is refused as it grows, alone, and
// nothing of it stays.
func TestMessagesCountAsTheyAreDecompressed(t *testing.T) {
	for name, dial := range map[string]grpc.DialOption{
		"gzip":    grpc.WithDefaultCallOptions(grpc.UseCompressor(gzip.Name)),
		"deflate": grpc.WithCompressor(deflater{}), //nolint:staticcheck // as in the server
	} {
		t.Run(name, func(t *testing.T) {
			budget := core.NewBudget(8 << 20)
			s, ctx := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}}), t.Context()
			s.dial(dial)
			bomb := &inference.ModelInferRequest{ModelName: "add_sub", RawInputContents: [][]byte{make([]byte, 16<<20)}}
			_, err := s.client.ModelInfer(ctx, bomb)
			if st := status.Convert(err); st.Code() != codes.ResourceExhausted || detail[*errdetails.ErrorInfo](st).GetReason() != "body_too_large" {
				t.Errorf("a message larger than the budget: %v", err)
			}
			if err := budget.Reserve(7 << 20); err != nil {
				t.Fatal(err)
			}
			bomb.RawInputContents[0] = bomb.RawInputContents[0][:3<<20]
			_, err = s.client.ModelInfer(ctx, bomb)
			if st := status.Convert(err); st.Code() != codes.ResourceExhausted || detail[*errdetails.ErrorInfo](st).GetReason() != "memory_full" {
				t.Errorf("a message larger than what is left: %v", err)
			}
			if _, err := s.client.ModelInfer(ctx, addSub(100)); err != nil {
				t.Errorf("one that fits beside it: %v", err)
			}
			if held := budget.Reserved(); held != 7<<20 {
				t.Errorf("%d bytes are held, want those of the test", held)
			}
			_, err = s.client.ServerMetadata(ctx, &inference.ServerMetadataRequest{})
			if err != nil {
				t.Errorf("a call without an inference: %v", err)
			}
			stream, err := s.client.ModelStreamInfer(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(addSub(1)); err != nil {
				t.Fatal(err)
			}
			if item, err := stream.Recv(); err != nil || item.GetErrorMessage() != "" {
				t.Errorf("a stream: %v %v", item, err)
			}
			if err := stream.Send(bomb); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a stream's message larger than what is left: %v", err)
			}
		})
	}
}
