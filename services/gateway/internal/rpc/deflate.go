package rpc

import (
	"compress/zlib"
	"fmt"
	"io"
)

// deflate reads requests that were compressed as grpc-encoding deflate, which
// is zlib's format. The C and Python clients offer it; gRPC for Go does not
// have it.
type deflate struct {
	limit int // bytes after decompression
}

// Type is the name in the grpc-encoding header.
func (deflate) Type() string { return "deflate" }

// Do decompresses a message. It stops at one byte more than the limit, by
// which gRPC refuses the message.
func (d deflate) Do(r io.Reader) ([]byte, error) {
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read zlib header: %w", err)
	}
	return io.ReadAll(io.LimitReader(z, int64(d.limit)+1))
}
