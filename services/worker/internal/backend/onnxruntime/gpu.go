//go:build cgo

package onnxruntime

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/device"
)

// gpu is the GPU that a model's session is on.
type gpu struct {
	cuda *cuda
	// number is the machine's, ordinal CUDA's.
	number, ordinal int
}

// memory tells how many bytes of the GPU are free, and how many it has.
func (g *gpu) memory() (free, total int64, err error) {
	if free, total, err = g.cuda.Memory(g.ordinal); err != nil {
		return 0, 0, fmt.Errorf("GPU %d: %w", g.number, err)
	}
	return free, total, nil
}

// fault is why the GPU runs nothing more in this process; nil if it does.
func (g *gpu) fault() error {
	if err := g.cuda.Synchronize(g.ordinal); err != nil {
		return errs.New(errs.DeviceFailed, "GPU %d has failed: %v", g.number, err)
	}
	return nil
}

// pin keeps memory in its place, as far as there may be such, so that the GPU reads and writes
// it by itself. The function lets it go.
func (g *gpu) pin(memory []byte) (unpin func()) {
	pool := g.cuda.pinned
	if !pool.Take(int64(len(memory))) {
		return func() {}
	}
	if err := g.cuda.Pin(g.ordinal, memory); err != nil {
		pool.Give(int64(len(memory))) // the driver copies through memory of its own
		return func() {}
	}
	return func() {
		g.cuda.Unpin(memory)
		pool.Give(int64(len(memory)))
	}
}

// fits refuses a model whose files are larger than what is free of the GPU's memory: they are
// what its weights take at least.
func (g *gpu) fits(bytes int64) error {
	free, total, err := g.memory()
	if err != nil {
		return err
	}
	if bytes > free {
		return errs.New(errs.DeviceMemory, "its files have %d bytes, and %d of the %d bytes of GPU %d are free: unload models there, or give it another device", bytes, free, total, g.number)
	}
	return nil
}

// outOfMemory reports whether a device had too little memory. ONNX Runtime tells it in words
// alone: those of its arena, of CUDA and of cuBLAS.
func outOfMemory(err error) bool {
	var status *statusError
	text := ""
	if errors.As(err, &status) {
		text = status.text
	} else if err != nil {
		text = err.Error()
	}
	for _, words := range []string{
		"Failed to allocate memory for requested buffer", "is smaller than requested bytes", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// explain words why a run on the GPU has failed, and tells the worker where nothing runs there
// any more.
func (g *gpu) explain(err error, rows int64, told func(error)) error {
	if fault := g.fault(); fault != nil {
		if told != nil {
			told(fault)
		}
		return fault
	}
	if !outOfMemory(err) {
		return err
	}
	where := fmt.Sprintf("GPU %d", g.number)
	if free, total, err := g.memory(); err == nil {
		where = fmt.Sprintf("GPU %d, of whose %d bytes %d are free,", g.number, total, free)
	}
	return errs.Wrap(errs.DeviceMemory, err, "%s has no memory for a batch of %d: unload models there, or send smaller ones", where, max(rows, 1))
}

// room is how many rows of a batch a device has had memory for. Its zero value knows of no
// bound.
type room struct {
	rows int64 // 0 is no bound
	runs int
	// failures are those of one request by itself, one after another.
	failures int
}

// mostFailures is how often a request by itself is tried again.
const mostFailures = 3

// again is after how many runs more is tried: what else is on the device may have gone.
const again = 64

// failed notes a batch that was too large, of several requests or of one.
func (r *room) failed(rows int64, several bool) {
	if several {
		r.rows, r.runs = max(rows/2, 1), 0
		return
	}
	r.failures++
}

// ran notes one that was not.
func (r *room) ran() {
	r.failures = 0
	if r.rows == 0 {
		return
	}
	if r.runs++; r.runs == again {
		r.rows, r.runs = 2*r.rows, 0
	}
}

// admits reports whether a batch may grow to so many rows.
func (r *room) admits(rows int64) bool { return r.rows == 0 || rows <= r.rows }

// deviceOf finds the GPU of a version, nil for the CPUs.
func (b *Backend) deviceOf(v backend.Version) *gpu {
	if !v.Device.GPU() {
		return nil
	}
	return &gpu{cuda: b.cuda, number: v.Device.Number, ordinal: device.Ordinal(v.Device.Number)}
}
