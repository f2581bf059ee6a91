package rpc_test

import (
	"context"
	"io"
	"runtime"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/stats"

	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
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

// Large responses are compressed a few at a time, and small ones beside them.
func TestLargeResponsesAreCompressedInTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := make([]byte, memory.LargeBody)
		begin := func() io.WriteCloser {
			w, err := encoding.GetCompressor("gzip").Compress(io.Discard)
			if err != nil {
				t.Error(err)
			}
			return w
		}
		write := func(w io.WriteCloser, b []byte) {
			if _, err := w.Write(b); err != nil {
				t.Error(err)
			}
		}
		var held []io.WriteCloser
		for range max(runtime.GOMAXPROCS(0)/2, 1) {
			w := begin()
			write(w, large)
			held = append(held, w)
		}
		done := false
		go func() {
			w := begin()
			write(w, large[:len(large)/2])
			write(w, large[:len(large)/2])
			_ = w.Close()
			done = true
		}()
		small := begin()
		write(small, []byte("small"))
		_ = small.Close()
		if synctest.Wait(); done {
			t.Error("a large response is compressed while all turns are taken")
		}
		for _, w := range held {
			_ = w.Close()
		}
		if synctest.Wait(); !done {
			t.Error("a large response is not compressed though no turn is taken")
		}
	})
}
