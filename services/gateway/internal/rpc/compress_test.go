package rpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
)

// encodings notes how the responses of calls are compressed.
type encodings struct{ seen chan string }

func (encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (encodings) HandleConn(context.Context, stats.ConnStats)                       {}

func (e encodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if header, ok := s.(*stats.InHeader); ok {
		e.seen <- header.Compression
	}
}

func TestResponsesAreCompressedWhereThatIsAskedFor(t *testing.T) {
	for compress, want := range map[bool]string{true: "gzip", false: ""} {
		s, e := serveWith(t, rpc.Options{Compress: compress}), encodings{make(chan string, 2)}
		s.dial(grpc.WithStatsHandler(e))
		if _, err := s.client.ModelInfer(t.Context(), addSub(1)); err != nil {
			t.Fatal(err)
		}
		if got := <-e.seen; got != want {
			t.Errorf("unary: compressed as %q, want %q", got, want)
		}
		stream, err := s.client.ModelStreamInfer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Send(addSub(1))
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		if got := <-e.seen; got != want {
			t.Errorf("stream: compressed as %q, want %q", got, want)
		}
		_ = stream.CloseSend()
		if _, err := stream.Recv(); err == nil {
			t.Error("the stream goes on")
		}
	}
}
