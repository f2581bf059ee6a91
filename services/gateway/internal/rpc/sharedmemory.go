package rpc

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// The shared memory RPCs apply to the regions of the caller's tenant.

// SystemSharedMemoryStatus implements the RPC.
func (s *service) SystemSharedMemoryStatus(ctx context.Context, r *inference.SystemSharedMemoryStatusRequest) (*inference.SystemSharedMemoryStatusResponse, error) {
	list, err := s.regions.Status(path.CallOf(ctx).RegionOwner(), regions.System, r.GetName())
	if err != nil {
		return nil, err
	}
	named := make(map[string]*inference.SystemSharedMemoryStatusResponse_RegionStatus, len(list))
	for _, of := range list {
		named[of.Name] = &inference.SystemSharedMemoryStatusResponse_RegionStatus{Name: of.Name, Key: of.Key, Offset: of.Offset, ByteSize: of.Size}
	}
	return &inference.SystemSharedMemoryStatusResponse{Regions: named}, nil
}

// SystemSharedMemoryRegister implements the RPC.
func (s *service) SystemSharedMemoryRegister(ctx context.Context, r *inference.SystemSharedMemoryRegisterRequest) (*inference.SystemSharedMemoryRegisterResponse, error) {
	of := regions.Region{Name: r.GetName(), Key: r.GetKey(), Offset: r.GetOffset(), Size: r.GetByteSize()}
	if err := s.regions.Register(path.CallOf(ctx).RegionOwner(), of); err != nil {
		return nil, err
	}
	return &inference.SystemSharedMemoryRegisterResponse{}, nil
}

// SystemSharedMemoryUnregister implements the RPC.
func (s *service) SystemSharedMemoryUnregister(ctx context.Context, r *inference.SystemSharedMemoryUnregisterRequest) (*inference.SystemSharedMemoryUnregisterResponse, error) {
	if err := s.regions.Unregister(path.CallOf(ctx).RegionOwner(), regions.System, r.GetName()); err != nil {
		return nil, err
	}
	return &inference.SystemSharedMemoryUnregisterResponse{}, nil
}

// CudaSharedMemoryStatus implements the RPC.
func (s *service) CudaSharedMemoryStatus(ctx context.Context, r *inference.CudaSharedMemoryStatusRequest) (*inference.CudaSharedMemoryStatusResponse, error) {
	list, err := s.regions.Status(path.CallOf(ctx).RegionOwner(), regions.CUDA, r.GetName())
	if err != nil {
		return nil, err
	}
	named := make(map[string]*inference.CudaSharedMemoryStatusResponse_RegionStatus, len(list))
	for _, of := range list {
		named[of.Name] = &inference.CudaSharedMemoryStatusResponse_RegionStatus{Name: of.Name, DeviceId: uint64(of.Device), ByteSize: of.Size} //nolint:gosec // registered, so not negative
	}
	return &inference.CudaSharedMemoryStatusResponse{Regions: named}, nil
}

// CudaSharedMemoryRegister implements the RPC.
func (s *service) CudaSharedMemoryRegister(ctx context.Context, r *inference.CudaSharedMemoryRegisterRequest) (*inference.CudaSharedMemoryRegisterResponse, error) {
	if err := s.regions.Allowed(); err != nil {
		return nil, err
	}
	if len(r.GetRawHandle()) != regions.HandleBytes {
		return nil, errs.New(errs.InvalidParameter, "failed to register shared memory region: invalid args")
	}
	call := path.CallOf(ctx)
	of := regions.Region{Name: r.GetName(), Device: r.GetDeviceId(), Size: r.GetByteSize()}
	if err := s.regions.RegisterCUDA(call.Context(), call.RegionOwner(), of, r.GetRawHandle()); err != nil {
		return nil, err
	}
	return &inference.CudaSharedMemoryRegisterResponse{}, nil
}

// CudaSharedMemoryUnregister implements the RPC.
func (s *service) CudaSharedMemoryUnregister(ctx context.Context, r *inference.CudaSharedMemoryUnregisterRequest) (*inference.CudaSharedMemoryUnregisterResponse, error) {
	if err := s.regions.Unregister(path.CallOf(ctx).RegionOwner(), regions.CUDA, r.GetName()); err != nil {
		return nil, err
	}
	return &inference.CudaSharedMemoryUnregisterResponse{}, nil
}
