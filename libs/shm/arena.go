package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// Number is the number of a process's only region. Zero is memory that is not
// shared.
const Number = 1

const (
	page      = 4096
	wordBytes = 8
	markBytes = 16
	// pagesPerHeader is how many pages of slots one page of generations
	// serves.
	pagesPerHeader = page / wordBytes
)

// Announcement has the data that a peer needs to open an arena.
type Announcement struct {
	// Path is where a process of the same host opens the memory.
	Path string
	// Size is the region's, in bytes.
	Size int64
	// Mark is the content of its first bytes.
	Mark []byte
}

// Arena is memory of this process that others may read. Its size limits addresses, not memory:
// pages use memory once they are written, until the pool returns them. It is safe for
// concurrent use.
type Arena struct {
	file        *os.File
	mem         []byte
	generations []uint64 // by page of the slots; grown with atomics
	first       int64    // where the slots begin

	mu     sync.Mutex
	spaces spaces // guarded by mu
	closed bool   // guarded by mu
}

var _ tensor.Memory = (*Arena)(nil)

// New makes an arena with room for size bytes of slots. The caller closes it
// when no buffer of it is in use any more; a process that ends need not.
func New(size int64) (*Arena, error) {
	if size <= 0 {
		return nil, fmt.Errorf("shared memory of %d bytes: want more than none", size)
	}
	layout := layoutOf(size)
	fd, err := unix.MemfdCreate("nereid-tensors", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	a := &Arena{file: os.NewFile(uintptr(fd), "memfd:nereid-tensors"), first: layout.first}
	if err := a.open(fd, layout); err != nil {
		_ = a.file.Close()
		return nil, fmt.Errorf("make shared memory of %d bytes: %w", layout.total, err)
	}
	return a, nil
}

func (a *Arena) open(fd int, l layout) error {
	if err := unix.Ftruncate(fd, l.total); err != nil {
		return err
	}
	// A file that can neither shrink nor grow: no reader of a page of it can
	// be cut off.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return err
	}
	mem, err := unix.Mmap(fd, 0, int(l.total), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	a.mem = mem
	a.generations = words(mem, l)
	a.spaces.give(l.first, l.total-l.first)
	_, err = rand.Read(mem[:markBytes])
	return err
}

// Announcement returns where peers find the arena. The mark belongs to the caller.
func (a *Arena) Announcement() Announcement {
	return Announcement{
		Path: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), a.file.Fd()),
		Size: int64(len(a.mem)), Mark: append([]byte(nil), a.mem[:markBytes]...),
	}
}

// Map hands out size bytes, with any content: a slot, or memory that is not
// shared where the arena has no room. It implements [tensor.Memory].
func (a *Arena) Map(size int) ([]byte, error) {
	n := pages(size)
	a.mu.Lock()
	at, ok := a.spaces.take(n)
	a.mu.Unlock()
	if !ok {
		return tensor.Anonymous{}.Map(size)
	}
	return a.mem[at : at+int64(size) : at+n], nil
}

// Retire ends the use of mem: references to it are no longer valid. It is called each time a
// slot is returned, before it is handed out again.
func (a *Arena) Retire(mem []byte) {
	if at, ok := a.offsetOf(mem); ok {
		atomic.AddUint64(a.generation(at), 1)
	}
}

// Unmap releases the result of Map, after Retire, and returns its pages to the operating
// system.
func (a *Arena) Unmap(mem []byte) {
	at, ok := a.offsetOf(mem)
	if !ok {
		tensor.Anonymous{}.Unmap(mem)
		return
	}
	n := pages(cap(mem))
	// It fails only where the kernel cannot: then the pages keep their memory
	// until they are used again.
	_ = unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, n)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spaces.give(at, n)
}

// Name returns the reference by which a peer reads what local names: of place
// Arena, and without a reference on the buffer, which the caller keeps. It is
// false if the buffer is no slot.
func (a *Arena) Name(local tensor.Ref) (tensor.Ref, bool) {
	if !local.Mapped() || local.Buffer.Len() == 0 {
		return tensor.Ref{}, false
	}
	at, ok := a.offsetOf(local.Buffer.Bytes())
	if !ok {
		return tensor.Ref{}, false
	}
	return tensor.Ref{
		Place: tensor.Arena, Region: Number, Slot: uint64(at), Generation: atomic.LoadUint64(a.generation(at)),
		Offset: local.Offset, Length: local.Length,
	}, true
}

// Close unmaps the arena. Peers keep what they have opened.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	return errors.Join(unix.Munmap(a.mem), a.file.Close())
}

// offsetOf returns where memory lies in the region; false if it is not there.
func (a *Arena) offsetOf(mem []byte) (int64, bool) { return offsetIn(a.mem, mem) }

func offsetIn(region, mem []byte) (int64, bool) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(region)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	if at < start || at >= start+uintptr(len(region)) {
		return 0, false
	}
	return int64(at - start), true
}

func (a *Arena) generation(at int64) *uint64 { return &a.generations[(at-a.first)/page] }

// layout is how a region is divided: the mark, the generations of the slots by
// page, the slots.
type layout struct{ first, total int64 }

func layoutOf(size int64) layout {
	slots := pages64(size)
	headers := (slots/page + pagesPerHeader - 1) / pagesPerHeader * page
	first := page + headers
	return layout{first: first, total: first + slots}
}

// layoutWithin is the layout of a region of total bytes; false if there is
// none.
func layoutWithin(total int64) (layout, bool) {
	const group = page + pagesPerHeader*page // a page of generations and what it serves
	body := total - page
	if body <= 0 || total%page != 0 {
		return layout{}, false
	}
	headers := (body + group - 1) / group * page
	l := layoutOf(body - headers)
	return l, body > headers && l.total == total
}

// words are the generations in the memory of a region.
func words(mem []byte, l layout) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mem[page])), (l.total-l.first)/page)
}

func pages(n int) int64     { return pages64(int64(n)) }
func pages64(n int64) int64 { return (n + page - 1) / page * page }
