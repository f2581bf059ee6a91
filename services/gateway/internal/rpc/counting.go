package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// controlParameters is the field of a load's and an unload's parameters.
const controlParameters = 3

// counting is a load or unload whose parameters are counted before any is read.
type counting struct {
	message any
	err     error // there are too many, and the message is empty
}

// counts has a handler of loads or unloads refuse more parameters than there
// may be.
func counts(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		return next(srv, ctx, func(message any) error {
			in := &counting{message: message}
			if err := decode(in); err != nil {
				return err
			}
			return in.err
		}, interceptor)
	}
}

// read reads the message, unless it has too many parameters.
func (in *counting) read(data mem.BufferSlice, c codec) error {
	if controlParametersOf(data) > core.MaxControlParameters {
		in.err = modelfiles.TooManyLoadFiles("") // gRPC would word it, and drop the reason
		return nil
	}
	return c.CodecV2.Unmarshal(data, in.message)
}

// controlParametersOf counts a message's parameters, up to where it cannot be
// read.
func controlParametersOf(data mem.BufferSlice) (n int) {
	for c := protoscan.New(data); c.Left() > 0; {
		f, err := c.Field()
		if err == nil {
			err = c.SkipField(f)
		}
		if err != nil {
			return n // so says who reads it
		}
		if f == protoscan.Text(controlParameters) {
			n++
		}
	}
	return n
}
