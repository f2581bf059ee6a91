package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/tap"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// A call ends before its client's deadline by the margin, a fraction of the time
// that it has and at most maxMargin. At the deadline itself gRPC resets the
// stream, and the client would see a canceled call or a broken stream. With 5 ms
// some still did where the processor was short.
const (
	marginFraction = 16
	maxMargin      = 50 * time.Millisecond
)

// endEarly gives a call the context that ends early. Streams have it from their
// handler: gRPC itself would respond, in its own words, to one that receives.
func endEarly(ctx context.Context, info *tap.Info) context.Context {
	if info.FullMethodName == inference.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		return ctx
	}
	if _, ok := ctx.Deadline(); !ok {
		return ctx
	}
	early, cancel := withEarlyEnd(ctx)
	_ = cancel // gRPC cancels ctx at the end of the call
	return early
}

func withEarlyEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	margin := min(time.Until(deadline)/marginFraction, maxMargin)
	return context.WithDeadline(ctx, deadline.Add(-margin))
}
