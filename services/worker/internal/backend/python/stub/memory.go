package stub

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"
)

// How memory is divided.
const (
	// InlineBytes is the size from which tensors are no more in a message's body.
	InlineBytes = 4 << 10
	fileBytes   = 1 << 20
	keptBytes   = 64 << 20
)

// outgoing is memory of the worker that the stub maps: files of slots of one size
// each, which hold inputs. It is safe for concurrent use.
type outgoing struct {
	mu    sync.Mutex
	files map[uint64]*outFile // guarded by mu
	last  uint64              // number of a file; guarded by mu
	free  [64][]Slot          // by the power of two; guarded by mu
	idle  int64               // bytes in free; guarded by mu
	frees uint64              // how often files were free; guarded by mu
}

type outFile struct {
	mem   []byte
	class int
	used  []bool // by slot
	taken int
	freed uint64 // in which turn it was free last
}

// place is a slot that was taken.
type place struct {
	Slot
	mem []byte
	// fd is the file's where the stub does not have it yet; -1 if it has.
	fd   int
	size int64
}

// take finds a slot for n bytes.
func (o *outgoing) take(n int) (place, error) {
	class := bits.Len(uint(max(n, InlineBytes) - 1)) //nolint:gosec // positive
	o.mu.Lock()
	defer o.mu.Unlock()
	p := place{fd: -1}
	if len(o.free[class]) == 0 {
		var err error
		if p.fd, err = o.growLocked(class); err != nil {
			return place{}, err
		}
	}
	list := o.free[class]
	p.Slot = list[len(list)-1]
	o.free[class] = list[:len(list)-1]
	o.idle -= 1 << class
	f := o.files[p.File]
	f.used[p.Offset>>class] = true
	f.taken++
	p.mem, p.size = f.mem[p.Offset:p.Offset+int64(n)], int64(len(f.mem))
	return p, nil
}

// growLocked makes a file of slots of a size, and returns its descriptor.
func (o *outgoing) growLocked(class int) (fd int, err error) {
	size := max(fileBytes, 1<<class)
	fd, err = unix.MemfdCreate("nereid-inputs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("make memory for a stub: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return -1, fmt.Errorf("make %d bytes of memory for a stub: %w", size, err)
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return -1, fmt.Errorf("seal memory for a stub: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return -1, fmt.Errorf("map %d bytes of memory for a stub: %w", size, err)
	}
	o.last++
	if o.files == nil {
		o.files = make(map[uint64]*outFile)
	}
	o.files[o.last] = &outFile{mem: mem, class: class, used: make([]bool, size>>class)}
	for at := int64(size) - 1<<class; at >= 0; at -= 1 << class {
		o.free[class] = append(o.free[class], Slot{o.last, at})
	}
	o.idle += int64(size)
	return fd, nil
}

// release takes slots back that the stub gives up, and returns the files that are to
// be dropped.
func (o *outgoing) release(slots []Slot) (dropped []uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range slots {
		f := o.files[s.File]
		if f == nil || s.Offset >= int64(len(f.mem)) || s.Offset%(1<<f.class) != 0 || !f.used[s.Offset>>f.class] {
			return dropped, fmt.Errorf("the stub gives up memory that it does not have: file %d at %d", s.File, s.Offset)
		}
		f.used[s.Offset>>f.class] = false
		f.taken--
		o.free[f.class] = append(o.free[f.class], s)
		o.idle += 1 << f.class
		if f.taken == 0 {
			o.frees++
			f.freed = o.frees
		}
	}
	for o.idle > keptBytes {
		number, f := o.longestFreeLocked()
		if f == nil {
			break
		}
		o.dropLocked(number, f)
		dropped = append(dropped, number)
	}
	return dropped, nil
}

// longestFreeLocked finds the file that has been free for longest: sizes change, and
// those of now are likely to come again.
func (o *outgoing) longestFreeLocked() (number uint64, longest *outFile) {
	for n, f := range o.files {
		if f.taken == 0 && (longest == nil || f.freed < longest.freed) {
			number, longest = n, f
		}
	}
	return number, longest
}

// dropLocked ends a file whose slots are all free.
func (o *outgoing) dropLocked(number uint64, f *outFile) {
	rest := o.free[f.class][:0]
	for _, s := range o.free[f.class] {
		if s.File != number {
			rest = append(rest, s)
		}
	}
	o.free[f.class] = rest
	o.idle -= int64(len(f.mem))
	delete(o.files, number)
	_ = unix.Munmap(f.mem)
}

// close ends all files. Nothing is written to them any more.
func (o *outgoing) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.files {
		_ = unix.Munmap(f.mem)
	}
	o.files, o.free = nil, [64][]Slot{}
}
