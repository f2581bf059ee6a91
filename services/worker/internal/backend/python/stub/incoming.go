package stub

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxFiles bounds what a stub may have mapped.
const maxFiles = 1 << 16

// incoming is memory of the stub that the worker maps, to read: it holds outputs. A
// mapping lives until the file is dropped, or the stub has ended, and nothing in it
// is in use. It is safe for concurrent use.
type incoming struct {
	mu     sync.Mutex
	files  map[uint64]*inFile // guarded by mu
	closed bool               // guarded by mu
	freed  []Slot             // to be told to the stub; guarded by mu
	bytes  int64              // in freed; guarded by mu
}

type inFile struct {
	mem   []byte
	taken int  // references
	over  bool // to be unmapped when there are none
}

// add maps the files of a message, whose descriptors it closes.
func (in *incoming) add(files []File, descriptors []int) error {
	defer closeAll(descriptors)
	if len(files) != len(descriptors) {
		return fmt.Errorf("a message of the stub names %d files, and has %d", len(files), len(descriptors))
	}
	for i, f := range files {
		if err := in.mapFile(f, descriptors[i]); err != nil {
			return fmt.Errorf("file %d of the stub: %w", f.Number, err)
		}
	}
	return nil
}

func (in *incoming) mapFile(f File, fd int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return err
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("it is no memory: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("it could shrink")
	}
	if f.Size <= 0 || f.Size != stat.Size || int64(int(f.Size)) != f.Size {
		return fmt.Errorf("it has %d bytes, not %d", stat.Size, f.Size)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.files[f.Number] != nil || len(in.files) >= maxFiles {
		return fmt.Errorf("there is one of this number, or %d", len(in.files))
	}
	mem, err := unix.Mmap(fd, 0, int(f.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if in.files == nil {
		in.files = make(map[uint64]*inFile)
	}
	in.files[f.Number] = &inFile{mem: mem}
	return nil
}

// take references bytes of a slot, which is given up with the reference.
func (in *incoming) take(file uint64, offset, n int64, freed func()) (tensor.Ref, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.files[file]
	if f == nil || f.over || offset > int64(len(f.mem)) || n > int64(len(f.mem))-offset {
		return tensor.Ref{}, fmt.Errorf("a tensor of the stub is where nothing is: file %d at %d, %d bytes", file, offset, n)
	}
	f.taken++
	b := tensor.Wrap(f.mem[offset:offset+n:offset+n], true, func(*tensor.Buffer) {
		if in.release(f, Slot{file, offset}, n) {
			freed()
		}
	})
	return tensor.InBuffer(b, 0, n), nil
}

// When the stub is told at once of memory that it has again; else it is with what
// it is sent next, since a message wakes it.
const (
	tellSlots = 16
	tellBytes = 16 << 20
)

// release gives a slot up. It reports whether the stub should be told at once.
func (in *incoming) release(f *inFile, s Slot, n int64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	f.taken--
	if f.over && f.taken == 0 {
		_ = unix.Munmap(f.mem)
	}
	if in.closed || f.over {
		return false
	}
	in.freed = append(in.freed, s)
	in.bytes += n
	return len(in.freed) >= tellSlots || in.bytes >= tellBytes
}

// freedSlots appends what the stub has not been told of.
func (in *incoming) freedSlots(to []Slot) []Slot {
	in.mu.Lock()
	defer in.mu.Unlock()
	to = append(to, in.freed...)
	in.freed, in.bytes = in.freed[:0], 0
	return to
}

// drop ends files that the stub does not use any more.
func (in *incoming) drop(files []uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, number := range files {
		f := in.files[number]
		if f == nil {
			return fmt.Errorf("the stub drops file %d, which is not there", number)
		}
		in.endLocked(number, f)
	}
	return nil
}

func (in *incoming) endLocked(number uint64, f *inFile) {
	delete(in.files, number)
	f.over = true
	if f.taken == 0 {
		_ = unix.Munmap(f.mem)
	}
}

// close ends all files. What is in use stays until it is released.
func (in *incoming) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for number, f := range in.files {
		in.endLocked(number, f)
	}
}
