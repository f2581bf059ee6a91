package regions

import (
	"context"
	"errors"
	"fmt"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/link"
	shared "github.com/nereid-serving/nereid/libs/plane/region"
)

// HandleBytes is the size of a handle of CUDA memory in bytes: that of cudaIpcMemHandle_t.
const HandleBytes = shared.HandleBytes

// GPUs are the GPUs of the machine that the gateway runs on; memory can be shared only within one machine. It
// is safe for concurrent use.
type GPUs interface {
	// There reports whether any GPU has a worker.
	There() bool
	// Workers returns the workers of the GPU with a number. There are several if partitions of the GPU have
	// workers of their own.
	Workers(number int32) []link.Peer
}

// gpuMemory is GPU memory that the GPU's worker has mapped. If the worker ends, the mapping is lost, and the
// next use has it mapped again.
type gpuMemory struct {
	gpus   GPUs
	region string
	handle shared.Handle

	turn   chan struct{}  // buffers one element; whoever puts it in may use mapped and closed
	mapped *shared.Region // nil for none; owned by the holder of turn
	closed bool           // owned by the holder of turn
}

func newGPUMemory(gpus GPUs, r Region, handle []byte) *gpuMemory {
	h := shared.Handle{Device: int32(r.Device), Raw: [HandleBytes]byte(handle), Size: r.Size} //nolint:gosec // checked
	return &gpuMemory{gpus: gpus, region: r.Name, handle: h, turn: make(chan struct{}, 1)}
}

// memoryOf identifies memory of a GPU.
type memoryOf struct {
	device int32
	raw    [HandleBytes]byte
}

func (g *gpuMemory) identity() any { return memoryOf{g.handle.Device, g.handle.Raw} }

// open returns the mapping, and has a worker make one if there is none.
func (g *gpuMemory) open(ctx context.Context) (*shared.Region, error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-g.turn }()
	switch {
	case g.closed:
		return nil, g.lost(nil)
	case g.mapped != nil:
		return g.mapped, nil
	}
	workers := g.gpus.Workers(g.handle.Device)
	if len(workers) == 0 {
		return nil, g.lost(nil)
	}
	var err error
	for _, at := range workers {
		if g.mapped, err = shared.Open(ctx, at, g.handle); err == nil {
			return g.mapped, nil
		}
	}
	g.mapped = nil
	return nil, err
}

// drop closes a mapping whose stream has ended, unless that has been done.
func (g *gpuMemory) drop(m *shared.Region) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	if g.mapped == m {
		m.Close(context.Background()) // does not wait
		g.mapped = nil
	}
}

// use runs a copy, and repeats it once if the worker with the mapping was lost: copying twice is harmless.
func (g *gpuMemory) use(ctx context.Context, do func(*shared.Region) error) error {
	for again := false; ; again = true {
		m, err := g.open(ctx)
		if err != nil {
			return g.word(ctx, err, "it cannot be mapped again")
		}
		var refused *shared.RefusedError
		if err = do(m); err == nil || errors.As(err, &refused) {
			return g.word(ctx, err, "it cannot be copied")
		}
		if again || ctx.Err() != nil {
			return g.word(ctx, err, "")
		}
		g.drop(m)
	}
}

func (g *gpuMemory) readAt(ctx context.Context, data []byte, offset uint64) error {
	return g.use(ctx, func(m *shared.Region) error { return m.Read(ctx, data, offset) })
}

func (g *gpuMemory) writeAt(ctx context.Context, data []byte, offset uint64) error {
	return g.use(ctx, func(m *shared.Region) error { return m.Write(ctx, data, offset) })
}

// refusal returns the error for memory that cannot be registered.
func (g *gpuMemory) refusal(ctx context.Context, err error) error {
	const detailed = "failed to register shared memory region '%s': invalid args (%s)"
	var refused *shared.RefusedError
	switch {
	case errors.As(err, &refused):
		return errs.Wrap(errs.RegionRange, err, detailed, g.region, fmt.Sprintf("GPU %d: %s", g.handle.Device, refused.Text))
	case len(g.gpus.Workers(g.handle.Device)) == 0:
		return errs.New(errs.RegionRange, detailed, g.region, fmt.Sprintf("the gateway's machine has no worker of GPU %d", g.handle.Device))
	}
	return g.word(ctx, err, "")
}

// word returns the error for a failed use of the memory. The region's owner may see its text.
func (g *gpuMemory) word(ctx context.Context, err error, refusal string) error {
	var refused *shared.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return errs.Wrap(errs.RegionChanged, err, "shared memory region '%s' has changed: %s on GPU %d (%s); register it again", g.region, refusal, g.handle.Device, refused.Text)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errs.Wrap(errs.DeadlineCompute, err, "the deadline passed before shared memory region '%s' was copied", g.region)
	case ctx.Err() != nil:
		return errs.Wrap(errs.Canceled, err, "")
	}
	return g.lost(err)
}

// lost returns the error for memory whose worker cannot be reached.
func (g *gpuMemory) lost(err error) error {
	return errs.Wrap(errs.RegionLost, err, "the worker of GPU %d, which maps shared memory region '%s', cannot be reached: send the request again in a moment", g.handle.Device, g.region)
}

func (g *gpuMemory) close(ctx context.Context) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	g.closed = true
	if g.mapped != nil {
		g.mapped.Close(ctx)
		g.mapped = nil
	}
}
