package rpc

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// gRPC decompresses a message whole before anybody can count it. So it is given
// decompressors that pass messages on as they are, and the codec decompresses
// them, with every byte counted in the budget before there is memory for it. A
// first byte that no message has tells them: gzip's own is one, zlib's is not.
const (
	gzipMark    = 0x1f
	deflateMark = 0x07
)

// gzipLater is gzip of one server; others and clients keep gRPC's.
type gzipLater struct{}

// Type implements grpc.Decompressor.
func (gzipLater) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (gzipLater) Do(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// deflateLater is the encoding deflate, which is zlib's format. The C and Python
// clients offer it; gRPC for Go does not have it, and takes a second one for the
// whole process alone. So nothing is sent in it.
type deflateLater struct{}

func init() { encoding.RegisterCompressor(deflateLater{}) } //nolint:gochecknoinits // gRPC has no other way

// Name implements encoding.Compressor.
func (deflateLater) Name() string { return "deflate" }

// Compress implements encoding.Compressor.
func (deflateLater) Compress(io.Writer) (io.WriteCloser, error) {
	return nil, errs.New(errs.Unsupported, "nothing is sent as deflate")
}

// Decompress implements encoding.Compressor.
func (deflateLater) Decompress(r io.Reader) (io.Reader, error) {
	return io.MultiReader(bytes.NewReader([]byte{deflateMark}), r), nil
}

// compressedMessage is a message of a call that is compressed. The codec leaves a refusal
// in it: gRPC would drop its reason.
type compressedMessage struct {
	message any
	refusal error
}

// decompressed has a method's handler receive what may be compressed.
func decompressed(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		if isCompressed(ctx) {
			plain := decode
			decode = func(message any) error { return receive(message, plain) }
		}
		return next(srv, ctx, decode, interceptor)
	}
}

// streamDecompressed does the same for a stream.
func streamDecompressed(next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		if isCompressed(stream.Context()) {
			stream = compressedStream{stream}
		}
		return next(srv, stream)
	}
}

// isCompressed reports whether a call's messages may be compressed. gRPC would send
// responses as requests were: that stands for gzip alone.
func isCompressed(ctx context.Context) bool {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if !ok || stream.RecvCompress() == "" {
		return !ok
	}
	if stream.RecvCompress() == (deflateLater{}).Name() {
		_ = grpc.SetSendCompressor(ctx, encoding.Identity) // every client takes it
	}
	return true
}

// receive receives a message by decode, which is gRPC's.
func receive(message any, decode func(any) error) error {
	in := &compressedMessage{message: message}
	if err := decode(in); err != nil {
		return err
	}
	return in.refusal
}

// compressedStream is a stream whose messages may be compressed.
type compressedStream struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s compressedStream) RecvMsg(message any) error { return receive(message, s.ServerStream.RecvMsg) }

// Sizes of the pieces in which messages are decompressed, in bytes.
const (
	firstPiece   = 8 << 10
	largestPiece = 1 << 20
)

// copies is how often the bytes of a message are in memory while it is decoded: as
// the message, and as the tensors that are copied out of it.
const copies = 2

// plain is a decompressed message.
type plain struct {
	data    mem.BufferSlice
	buffers []*tensor.Buffer
	budget  *core.Budget
	held    int64
}

// release gives the message's memory back.
func (p *plain) release() {
	for _, b := range p.buffers {
		b.Release()
	}
	p.budget.Release(p.held)
}

// compression returns the mark of a compressed message, 0 for one that is not.
func compression(data mem.BufferSlice) byte {
	for _, b := range data {
		if b.Len() == 0 {
			continue
		}
		if mark := b.ReadOnlyData()[0]; mark == gzipMark || mark == deflateMark {
			return mark
		}
		break
	}
	return 0
}

// decompressor returns what decompresses a message with a mark.
func decompressor(mark byte, source *mem.Reader) (io.Reader, error) {
	if mark == gzipMark {
		return gzip.NewReader(source)
	}
	if _, err := source.ReadByte(); err != nil {
		return nil, err
	}
	return zlib.NewReader(source)
}

// decompress reads a message from r. The caller releases it.
func (c codec) decompress(r io.Reader) (*plain, error) {
	p := &plain{budget: c.budget}
	for size, left := int64(firstPiece), c.limit; ; size = min(8*size, largestPiece) {
		n, err := p.read(r, c.pool, min(size, left))
		switch left -= int64(n); {
		case err == nil && left < 0:
			err = errs.New(errs.BodyTooLarge, "the message has more than the maximum of %d bytes after decompression", c.limit)
		case errors.Is(err, io.EOF):
			return p, nil
		case err != nil && !errs.Classified(err):
			err = fmt.Errorf("decompress the message: %w", err)
		}
		if err != nil {
			p.release()
			return nil, err
		}
	}
}

// read reads n bytes, of which it counts the memory first; for 0 it looks for one
// byte more.
func (p *plain) read(r io.Reader, pool *tensor.Pool, n int64) (int, error) {
	piece := make([]byte, 1)
	if n > 0 {
		if err := p.budget.Reserve(copies * n); err != nil {
			return 0, err
		}
		p.held += copies * n
		b, err := pool.Get(int(n))
		if err != nil {
			return 0, err
		}
		p.buffers = append(p.buffers, b)
		piece = b.Bytes()
	}
	read := 0
	for read < len(piece) {
		more, err := r.Read(piece[read:])
		if read += more; err != nil {
			p.data = append(p.data, mem.SliceBuffer(piece[:read]))
			return read, err
		}
	}
	p.data = append(p.data, mem.SliceBuffer(piece))
	return read, nil
}
