package rpc

import (
	"context"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// The RPCs of shared memory respond as Triton with client shared memory disabled,
// its default.

// SystemSharedMemoryStatus implements the RPC: there are no regions.
func (s *service) SystemSharedMemoryStatus(_ context.Context, r *inference.SystemSharedMemoryStatusRequest) (*inference.SystemSharedMemoryStatusResponse, error) {
	if r.GetName() != "" {
		return nil, core.RegionNotFound(core.SystemMemory, r.GetName())
	}
	return &inference.SystemSharedMemoryStatusResponse{}, nil
}

// SystemSharedMemoryRegister implements the RPC by refusing it.
func (s *service) SystemSharedMemoryRegister(context.Context, *inference.SystemSharedMemoryRegisterRequest) (*inference.SystemSharedMemoryRegisterResponse, error) {
	return nil, core.SharedMemoryDisabled()
}

// SystemSharedMemoryUnregister implements the RPC by refusing it.
func (s *service) SystemSharedMemoryUnregister(context.Context, *inference.SystemSharedMemoryUnregisterRequest) (*inference.SystemSharedMemoryUnregisterResponse, error) {
	return nil, core.SharedMemoryDisabled()
}

// CudaSharedMemoryStatus implements the RPC: there are no regions.
func (s *service) CudaSharedMemoryStatus(_ context.Context, r *inference.CudaSharedMemoryStatusRequest) (*inference.CudaSharedMemoryStatusResponse, error) {
	if r.GetName() != "" {
		return nil, core.RegionNotFound(core.CUDAMemory, r.GetName())
	}
	return &inference.CudaSharedMemoryStatusResponse{}, nil
}

// CudaSharedMemoryRegister implements the RPC by refusing it.
func (s *service) CudaSharedMemoryRegister(context.Context, *inference.CudaSharedMemoryRegisterRequest) (*inference.CudaSharedMemoryRegisterResponse, error) {
	return nil, core.SharedMemoryDisabled()
}

// CudaSharedMemoryUnregister implements the RPC by refusing it.
func (s *service) CudaSharedMemoryUnregister(context.Context, *inference.CudaSharedMemoryUnregisterRequest) (*inference.CudaSharedMemoryUnregisterResponse, error) {
	return nil, core.SharedMemoryDisabled()
}
