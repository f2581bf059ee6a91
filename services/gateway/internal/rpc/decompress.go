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
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
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

// acceptsCompression has a method reply to a call that was compressed as its client
// reads it.
func acceptsCompression(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		replyAsRead(ctx)
		return next(srv, ctx, decode, interceptor)
	}
}

// streamAcceptsCompression does the same for a stream.
func streamAcceptsCompression(next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		replyAsRead(stream.Context())
		return next(srv, stream)
	}
}

// replyAsRead has gRPC not send in an encoding for receiving alone: it would send
// responses as requests were.
func replyAsRead(ctx context.Context) {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if ok && stream.RecvCompress() == (deflateLater{}).Name() {
		_ = grpc.SetSendCompressor(ctx, encoding.Identity) // every client takes it
	}
}

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
	data     mem.BufferSlice
	buffers  []*tensor.Buffer
	account  *memory.Account
	received int64 // bytes that are charged to it
}

// release gives the message's memory back.
func (p *plain) release() {
	for _, b := range p.buffers {
		b.Release()
	}
	p.account.Return(p.received)
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

// wireLength is how many bytes of a message came, without the mark that only deflate needs.
func wireLength(data mem.BufferSlice) int {
	if compression(data) == deflateMark {
		return data.Len() - 1
	}
	return data.Len()
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

// decompress reads a message of at most so many bytes from r. The caller releases it. A
// large one waits for its turn, and nothing more is done for a call that has ended.
func (c codec) decompress(r io.Reader, in *received, most int64) (*plain, error) {
	p := &plain{account: in.account}
	for size, left := int64(firstPiece), most; ; size = min(8*size, largestPiece) {
		n, err := 0, error(nil)
		if p.received >= memory.LargeBody {
			in.ledger.Rest() // the turns of large messages are others
			err = in.account.StartCoding(in.ctx)
		}
		if err == nil {
			n, err = p.read(r, c.pool, min(size, left))
		}
		switch left -= int64(n); {
		case err == nil && left < 0:
			err = errs.New(errs.BodyTooLarge, "the message has more than the maximum of %d bytes after decompression", most)
		case err == nil && in.ctx.Err() != nil:
			err = errs.Wrap(errs.Canceled, in.ctx.Err(), "the call ended while its message was decompressed")
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
		if err := p.account.Receive(n); err != nil {
			return 0, err
		}
		p.received += n
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
