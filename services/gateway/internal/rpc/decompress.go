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

// gRPC decompresses a whole message before anything can count it. So it gets decompressors that pass messages
// on unchanged, and the codec decompresses them, charging every byte to the budget before it allocates memory
// for it. A first byte that no message can start with marks them: gzip starts with such a byte itself, zlib
// does not.
const (
	gzipMark    = 0x1f
	deflateMark = 0x07
)

// gzipLater replaces gzip for one server; other servers, and clients, use gRPC's.
type gzipLater struct{}

// Type implements grpc.Decompressor.
func (gzipLater) Type() string { return "gzip" }

// Do implements grpc.Decompressor.
func (gzipLater) Do(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// deflateLater is the encoding deflate, which is the zlib format. The C and Python clients offer it. gRPC for
// Go lacks it, and registers an encoding only for the whole process; so nothing is sent in it.
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

// acceptsCompression makes a method reply to a compressed call in an encoding that its client can read.
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

// replyAsRead keeps gRPC from replying in an encoding that is only for receiving: by default it encodes
// responses as the request was.
func replyAsRead(ctx context.Context) {
	stream, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string })
	if ok && stream.RecvCompress() == (deflateLater{}).Name() {
		_ = grpc.SetSendCompressor(ctx, encoding.Identity) // every client accepts it
	}
}

// Sizes of the pieces in which messages are decompressed, in bytes.
const (
	firstPiece   = 8 << 10
	largestPiece = 1 << 20
)

// copies is how many times the bytes of a message are in memory while it is decoded: once as the message, and
// once as the tensors copied out of it.
const copies = 2

// plain is a decompressed message.
type plain struct {
	data     mem.BufferSlice
	buffers  []*tensor.Buffer
	account  *memory.Account
	received int64 // bytes charged to the account
}

// release frees the message's memory.
func (p *plain) release() {
	for _, b := range p.buffers {
		b.Release()
	}
	p.account.Return(p.received)
}

// compression returns the mark of a compressed message, or 0 for one that is not compressed.
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

// wireLength returns how many bytes of a message arrived, without the mark that was added for deflate.
func wireLength(data mem.BufferSlice) int {
	if compression(data) == deflateMark {
		return data.Len() - 1
	}
	return data.Len()
}

// decompressor returns the decompressor for a mark.
func decompressor(mark byte, source *mem.Reader) (io.Reader, error) {
	if mark == gzipMark {
		return gzip.NewReader(source)
	}
	if _, err := source.ReadByte(); err != nil {
		return nil, err
	}
	return zlib.NewReader(source)
}

// decompress reads a message of at most the given number of bytes from r. The caller releases it. A large one
// waits for its turn, and decompression stops when the call ends.
func (c codec) decompress(r io.Reader, in *received, most int64) (*plain, error) {
	p := &plain{account: in.account}
	for size, left := int64(firstPiece), most; ; size = min(8*size, largestPiece) {
		n, err := 0, error(nil)
		if p.received >= memory.LargeBody {
			in.ledger.Rest() // large messages have turns of their own
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

// read reads n bytes, after charging their memory. If n is 0 it checks whether one more byte follows.
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
