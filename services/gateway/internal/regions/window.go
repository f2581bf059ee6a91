package regions

import (
	"context"
	"math"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Range is a part of a region, as a request names it. It has not been checked.
type Range struct {
	Region       string
	Offset, Size uint64
}

// Input is an input whose bytes are in a region. Index is the input's position in the request.
type Input struct {
	Index int
	Range
}

// Output is an output whose bytes are written to a region.
type Output struct {
	Name string
	Range
}

// Window is a range of a region that a request uses. Its region stays open until Close.
type Window struct {
	regions      *Regions
	region       *region
	offset, size uint64 // in the region
}

// Open opens the window for a range of an owner's region.
func (m *Regions) Open(owner Owner, of Range) (Window, error) {
	var r *region
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		r = m.knownLocked(owner, of.Region)
	}
	switch {
	case r == nil:
		return Window{}, errs.New(errs.RegionNotFound, "Unable to find shared memory region: '%s'", of.Region)
	case of.Offset >= r.Size:
		return Window{}, errs.New(errs.RegionRange, "Invalid offset for shared memory region: '%s'", of.Region)
	case of.Size > math.MaxUint64-of.Offset:
		return Window{}, errs.New(errs.RegionRange, "Integer overflow detected: byte_size (%d) + offset (%d) exceeds maximum value (%d) for region '%s'",
			of.Size, of.Offset, uint64(math.MaxUint64), of.Region)
	case of.Size == 0 || of.Size > r.Size-of.Offset:
		return Window{}, errs.New(errs.RegionRange, "Invalid offset + byte size for shared memory region: '%s'", of.Region)
	}
	r.users++
	return Window{regions: m, region: r, offset: of.Offset, size: of.Size}, nil
}

// Size returns the window's size in bytes.
func (w *Window) Size() int64 { return int64(w.size) } //nolint:gosec // within the region

// Read fills data, which has the window's size.
func (w *Window) Read(ctx context.Context, data []byte) error {
	return w.region.memory.readAt(ctx, data, w.offset)
}

// Write writes data, which has at most the window's size, to its start.
func (w *Window) Write(ctx context.Context, data []byte) error {
	return w.region.memory.writeAt(ctx, data, w.offset)
}

// Close stops using the region.
func (w *Window) Close() {
	w.regions.mu.Lock()
	w.region.users--
	ended := w.regions.endLocked(w.region)
	w.regions.mu.Unlock()
	closeAll(ended)
}
