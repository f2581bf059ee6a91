package shm

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// ErrReused says that a slot was returned after the reference to it was made.
var ErrReused = errors.New("the slot was given back")

// Region is another process's arena, for reading. It is unmapped when its opener and all
// references from [Region.Local] have been released.
type Region struct {
	mem         []byte
	generations []uint64
	first       int64
	refs        atomic.Int64
}

// Open maps a peer's arena. It fails where the memory is not this host's, or
// not what was announced: the peer is not trusted to tell the truth. The caller
// releases the region.
func Open(a Announcement) (*Region, error) {
	l, ok := layoutWithin(a.Size)
	// Nothing but an open file of a process is opened on a peer's word.
	if !ok || len(a.Mark) != markBytes || !regexp.MustCompile(`^/proc/[1-9][0-9]*/fd/[0-9]+$`).MatchString(a.Path) {
		return nil, fmt.Errorf("shared memory %q of %d bytes is not as Nereid makes it", a.Path, a.Size)
	}
	mem, err := mapReadOnly(a)
	if err != nil {
		return nil, fmt.Errorf("open shared memory %s: %w", a.Path, err)
	}
	if !bytes.Equal(mem[:markBytes], a.Mark) {
		_ = unix.Munmap(mem)
		return nil, fmt.Errorf("shared memory %s is another process's", a.Path)
	}
	r := &Region{mem: mem, generations: words(mem, l), first: l.first}
	r.refs.Store(1)
	return r, nil
}

func mapReadOnly(a Announcement) ([]byte, error) {
	// Opening must not wait, as it would for a pipe.
	fd, err := unix.Open(a.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // a mapping outlives its descriptor
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	// A file that could shrink would be a fault for who reads it.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is no sealed memory: %w", err)
	case seals&unix.F_SEAL_SHRINK == 0:
		return nil, errors.New("it is not sealed against shrinking")
	case stat.Size != a.Size:
		return nil, fmt.Errorf("it has %d bytes, not %d", stat.Size, a.Size)
	}
	return unix.Mmap(fd, 0, int(a.Size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_NORESERVE)
}

// Release releases one reference.
func (r *Region) Release() {
	if r.refs.Add(-1) == 0 {
		// The address and length are those of the mapping: this cannot fail.
		_ = unix.Munmap(r.mem)
	}
}

// Local returns a reference that reads the slot's memory in place. It fails with ErrReused for
// a slot that was returned; one that is returned later may change under the reader, see
// [Region.Current].
func (r *Region) Local(named tensor.Ref) (tensor.Ref, error) {
	data, err := r.slice(named)
	if err != nil {
		return tensor.Ref{}, err
	}
	if !r.Current(named) {
		return tensor.Ref{}, ErrReused
	}
	r.refs.Add(1)
	buffer := tensor.Wrap(data, true, func(*tensor.Buffer) { r.Release() })
	return tensor.InBuffer(buffer, 0, named.Length), nil
}

// Current reports whether the slot has not been given back since the reference
// was made. What was read of it before is then what the reference names. The
// reference has been used with [Region.Local].
func (r *Region) Current(named tensor.Ref) bool {
	return atomic.LoadUint64(&r.generations[(int64(named.Slot)-r.first)/page]) == named.Generation
}

// Find returns where in the region the bytes of a reference that [Region.Local]
// made lie; false if they lie elsewhere.
func (r *Region) Find(local tensor.Ref) (at int64, ok bool) {
	if !local.Mapped() || local.Buffer.Len() == 0 {
		return 0, false
	}
	at, ok = offsetIn(r.mem, local.Buffer.Bytes())
	return at + local.Offset, ok
}

func (r *Region) slice(named tensor.Ref) ([]byte, error) {
	size := int64(len(r.mem))
	slot := int64(named.Slot)
	switch {
	case slot < r.first || slot >= size || slot%page != 0,
		named.Offset < 0 || named.Offset > size-slot,
		named.Length < 0 || named.Length > size-slot-named.Offset:
		return nil, fmt.Errorf("slot %d, bytes %d to %d, lies outside the region of %d bytes", named.Slot, named.Offset, named.Offset+named.Length, size)
	}
	start := slot + named.Offset
	return r.mem[start : start+named.Length : start+named.Length], nil
}
