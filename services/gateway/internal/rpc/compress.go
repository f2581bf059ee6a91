package rpc

import (
	"context"
	"io"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// compressed has the call's responses sent as gzip, if that is configured and the client accepts it.
func (s *service) compressed(ctx context.Context) {
	if s.compress {
		_ = grpc.SetSendCompressor(ctx, gzip.Name) // fails if the client does not accept it
	}
}

// gzipInTurns is gRPC's gzip, except that large messages take turns on half of the processors, as those that
// are decompressed do. gRPC compresses a message after its handler has returned and does not say for which
// call, so the turns belong to the process.
type gzipInTurns struct {
	encoding.Compressor
	turns *semaphore.Weighted
}

func init() { //nolint:gochecknoinits // gRPC has no other way
	encoding.RegisterCompressor(gzipInTurns{encoding.GetCompressor(gzip.Name), memory.NewCoding()})
}

// Compress implements encoding.Compressor.
func (g gzipInTurns) Compress(to io.Writer) (io.WriteCloser, error) {
	w, err := g.Compressor.Compress(to)
	return &turnWriter{WriteCloser: w, turns: g.turns}, err
}

// turnWriter compresses a message into memory; it never waits for a client while it has a turn.
type turnWriter struct {
	io.WriteCloser
	turns *semaphore.Weighted
	size  int
	taken bool
}

// Write implements io.Writer.
func (w *turnWriter) Write(b []byte) (int, error) {
	if w.size += len(b); w.size >= memory.LargeBody && !w.taken {
		w.taken = w.turns.Acquire(context.Background(), 1) == nil
	}
	return w.WriteCloser.Write(b)
}

// Close implements io.Closer.
func (w *turnWriter) Close() error {
	if w.taken {
		defer w.turns.Release(1)
	}
	return w.WriteCloser.Close()
}
