package rpc_test

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

func TestRequestsBeyondTheBudgetAreRefused(t *testing.T) {
	budget := memory.NewBudget(1_000_000)
	s, ctx := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}}), t.Context()
	if err := budget.Reserve(925_000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(100)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a call: %v", err)
	}
	stream, err := s.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"the requests in flight hold ", ""} {
		if err := stream.Send(addSub(100)); err != nil {
			t.Fatal(err)
		}
		item, err := stream.Recv()
		if err != nil || len(item.ErrorMessage) < len(want) || item.ErrorMessage[:len(want)] != want || (want == "") != (item.ErrorMessage == "") {
			t.Errorf("a stream: %v, %v, want %q", item, err, want)
		}
		if want != "" {
			budget.Release(925_000)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(100)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if _, err := s.client.ModelInfer(ctx, addSub(100_000)); status.Code(err) != codes.ResourceExhausted {
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
			budget := memory.NewBudget(8 << 20)
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
			releasedBut(t, budget, 7<<20)
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
			if item, err := stream.Recv(); err != nil || !strings.Contains(item.GetErrorMessage(), "would exceed the maximum") {
				t.Errorf("a stream's message larger than what is left: %v %v", item, err)
			}
			if err := stream.Send(addSub(1)); err != nil {
				t.Fatal(err)
			}
			if item, err := stream.Recv(); err != nil || item.GetErrorMessage() != "" {
				t.Errorf("the stream's next request: %v %v", item, err)
			}
		})
	}
}

// A few bytes on the wire become many in memory: the dimensions of a shape, integers of
// a byte each, texts without end, empty parameters. All are counted before there is
// memory for them.
func TestWhatAMessageBecomesIsCharged(t *testing.T) {
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	text := func(number protowire.Number, s string) []byte { return field(number, []byte(s)) }
	const n = 32 << 20
	input := func(parts ...[]byte) []byte {
		return field(5, slices.Concat(append([][]byte{text(1, "INPUT0"), text(2, "INT64")}, parts...)...))
	}
	for name, c := range map[string]struct {
		message []byte
		reason  string
	}{
		"dimensions":          {input(field(3, make([]byte, n))), "input_too_large"},
		"dimensions unpacked": {input(bytes.Repeat([]byte{3 << 3, 1}, n/2)), "input_too_large"},
		"varints":             {input(field(3, []byte{1}), field(5, field(3, make([]byte, n)))), "memory_full"},
		"an id":               {text(3, strings.Repeat("i", n)), "memory_full"},
		"a model's name":      {text(1, strings.Repeat("m", n)), "memory_full"},
		"parameters":          {bytes.Repeat(text(4, ""), n/2), "input_too_large"},
		"raw contents":        {bytes.Repeat(text(7, ""), n/2), "input_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 80 << 20
			budget := memory.NewBudget(limit)
			s, most := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}}), int64(0)
			watching, stop := context.WithCancel(t.Context())
			var watch sync.WaitGroup
			watch.Go(func() {
				for watching.Err() == nil {
					most = max(most, s.pool.Stats().InUse)
					runtime.Gosched()
				}
			})
			request := slices.Concat(text(1, "add_sub"), c.message)
			err := s.conn.Invoke(t.Context(), inference.GRPCInferenceService_ModelInfer_FullMethodName, request, new([]byte),
				grpc.ForceCodecV2(bare{}), grpc.UseCompressor(gzip.Name), grpc.MaxCallSendMsgSize(2*n))
			stop()
			watch.Wait()
			reason := ""
			if info := detail[*errdetails.ErrorInfo](status.Convert(err)); info != nil {
				reason = info.GetReason()
			}
			if err == nil || reason != c.reason {
				t.Errorf("refused as %q, want %q: %v", reason, c.reason, err)
			}
			if most > limit {
				t.Errorf("tensors took %d bytes of a budget of %d", most, limit)
			}
			released(t, budget)
		})
	}
}

// bare is a codec for messages that are bytes already.
type bare struct{}

func (bare) Name() string { return "proto" }

func (bare) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bare) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Calls that are no inferences name models and settings: their messages are small.
func TestOtherMessagesAreSmall(t *testing.T) {
	budget := memory.NewBudget(64 << 20)
	s := serveWith(t, rpc.Options{Options: path.Options{Budget: budget}})
	for method, want := range map[string]codes.Code{
		inference.GRPCInferenceService_ModelReady_FullMethodName:      codes.ResourceExhausted,
		inference.GRPCInferenceService_ServerLive_FullMethodName:      codes.ResourceExhausted,
		inference.GRPCInferenceService_RepositoryIndex_FullMethodName: codes.ResourceExhausted,
	} {
		message := protowire.AppendBytes(protowire.AppendTag(nil, 15, protowire.BytesType), make([]byte, 1<<20))
		err := s.conn.Invoke(t.Context(), method, message, new([]byte), grpc.ForceCodecV2(bare{}))
		if status.Code(err) != want || detail[*errdetails.ErrorInfo](status.Convert(err)).GetReason() != "body_too_large" {
			t.Errorf("%s: %v", method, err)
		}
	}
	released(t, budget)
}
