package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/tap"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// A call ends before its client's deadline by a margin: a fraction of the time that it has, at most maxMargin.
// At the deadline itself gRPC resets the stream, and the client would see a canceled call or a broken stream. A
// margin of 5 ms was too short for some calls when the processor was busy.
const (
	marginFraction = 16
	maxMargin      = 50 * time.Millisecond
)

// endEarly gives a call a context that ends early. A stream gets it from its handler instead, because here gRPC
// itself would respond, in its own words, while the stream receives.
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
