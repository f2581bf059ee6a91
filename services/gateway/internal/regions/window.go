package regions

import (
	"errors"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Range is a part of a region, as a request names it. Nothing has been checked about it.
type Range struct {
	Region       string
	Offset, Size uint64
}

// Input is an input whose bytes are in a region. Index is that of the request's input.
type Input struct {
	Index int
	Range
}

// Output is an output whose bytes go into a region.
type Output struct {
	Name string
	Range
}

// Window is a range of a region that a request uses. Its region stays open until Close.
type Window struct {
	regions      *Regions
	region       *region
	offset, size int64 // in the file
}

// Open returns the window of a range in a region of an owner.
func (m *Regions) Open(owner Owner, of Range) (Window, error) {
	var r *region
	if m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		r = m.named[owner][of.Region]
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
	return Window{regions: m, region: r, offset: int64(r.Offset + of.Offset), size: int64(of.Size)}, nil //nolint:gosec // within the file
}

// Size returns the window's size in bytes.
func (w *Window) Size() int64 { return w.size }

// Read fills data, which has the window's size.
func (w *Window) Read(data []byte) error { return w.wrap(w.region.file.readAt(data, w.offset)) }

// Write writes data, which has at most the window's size, to its beginning.
func (w *Window) Write(data []byte) error { return w.wrap(w.region.file.writeAt(data, w.offset)) }

// wrap words an error of the file, whose text is the region's owner's to know.
func (w *Window) wrap(err error) error {
	if err == nil {
		return nil
	}
	why := "it cannot be read or written"
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "its file is shorter than when the region was registered"
	case errors.Is(err, unix.ENOSPC):
		why = "there is no memory left for it"
	}
	return errs.Wrap(errs.RegionChanged, err, "shared memory region '%s' has changed: %s", w.region.Name, why)
}

// Close ends the use of the region.
func (w *Window) Close() {
	w.regions.mu.Lock()
	defer w.regions.mu.Unlock()
	w.region.users--
	w.regions.endLocked(w.region)
}
