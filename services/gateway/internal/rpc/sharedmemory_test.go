package rpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

func TestClientsShareNoMemory(t *testing.T) {
	s, ctx := serve(t), t.Context()
	type outcome struct {
		code codes.Code
		text string
	}
	disabled := outcome{codes.Unimplemented, "Client shared memory is disabled. Send the tensors in the request."}
	for name, c := range map[string]struct {
		call call
		want outcome
	}{
		"all system regions":  {systemStatus(""), outcome{}},
		"a system region":     {systemStatus("r"), outcome{codes.NotFound, "Unable to find system shared memory region: 'r'"}},
		"all CUDA regions":    {cudaStatus(""), outcome{}},
		"a CUDA region":       {cudaStatus("r"), outcome{codes.NotFound, "Unable to find cuda shared memory region: 'r'"}},
		"system registration": {registerSystem, disabled},
		"CUDA registration":   {registerCUDA, disabled},
		"the end of a system region": {func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
			_, err := c.SystemSharedMemoryUnregister(ctx, &inference.SystemSharedMemoryUnregisterRequest{})
			return err
		}, disabled},
		"the end of a CUDA region": {func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
			_, err := c.CudaSharedMemoryUnregister(ctx, &inference.CudaSharedMemoryUnregisterRequest{})
			return err
		}, disabled},
	} {
		err := c.call(ctx, s.client)
		if got := (outcome{status.Code(err), status.Convert(err).Message()}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

type call = func(context.Context, inference.GRPCInferenceServiceClient) error

func systemStatus(region string) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{Name: region})
		return err
	}
}

func cudaStatus(region string) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.CudaSharedMemoryStatus(ctx, &inference.CudaSharedMemoryStatusRequest{Name: region})
		return err
	}
}

func registerSystem(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
	_, err := c.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/r", ByteSize: 8})
	return err
}

func registerCUDA(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
	_, err := c.CudaSharedMemoryRegister(ctx, &inference.CudaSharedMemoryRegisterRequest{Name: "r", ByteSize: 8})
	return err
}
