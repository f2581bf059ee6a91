package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
)

// compressed has the call's responses sent as gzip, if that is asked for and the
// client takes it.
func (s *service) compressed(ctx context.Context) {
	if s.compress {
		_ = grpc.SetSendCompressor(ctx, gzip.Name) // fails where the client does not
	}
}
