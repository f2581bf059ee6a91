package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
)

// MappedThreshold is the size in bytes from which a [Pool] hands out memory
// outside the Go heap. Below it a copy into a batch is cheaper than the care
// that memory shared with C needs.
const MappedThreshold = 16 << 10

// Pool hands out buffers of any size and reuses returned ones: allocating a large buffer costs
// more than copying it. Small buffers come from the Go heap; from [MappedThreshold] on they are
// mapped memory, page-aligned, in four sizes per power of two. The content of a buffer is
// arbitrary.
//
// A Pool is safe for concurrent use. Buffers may outlive it.
type Pool struct {
	memory Memory
	keep   int64 // bytes of free mapped memory to keep
	small  [smallClasses]sync.Pool

	mu        sync.Mutex
	free      [classes][][]byte // guarded by mu
	freeBytes int64             // in free; guarded by mu
	unused    int64             // the least of freeBytes since TrimUnused; guarded by mu

	inUse atomic.Int64
}

const (
	smallClasses = 9 // 64 B to 16 KiB in powers of two
	smallestBits = 6
	classes      = 4 * 48
)

// NewPool returns a pool that retains up to keep bytes of free mapped memory and returns the
// rest to the operating system.
func NewPool(keep int64) *Pool { return NewPoolOf(Anonymous{}, keep) }

// NewPoolOf makes a pool whose mapped memory comes from m.
func NewPoolOf(m Memory, keep int64) *Pool { return &Pool{memory: m, keep: keep} }

// Stats is a pool's memory, in bytes of mapped memory.
type Stats struct{ InUse, Free int64 }

// Stats returns the memory handed out and retained.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{InUse: p.inUse.Load(), Free: p.freeBytes}
}

// Get returns a buffer of n bytes with one reference. It fails only when the
// operating system refuses memory. The caller has checked n against its
// limits.
func (p *Pool) Get(n int) (*Buffer, error) {
	if n < MappedThreshold {
		return p.getSmall(n), nil
	}
	class, size := classOf(n)
	if class >= classes {
		return nil, fmt.Errorf("a tensor of %d bytes is larger than any address space", n)
	}
	mem := p.take(class)
	if mem == nil {
		m, err := p.memory.Map(size)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes for a tensor: %w", size, err)
		}
		mem = m
	}
	p.inUse.Add(int64(size))
	return Wrap(mem[:n], true, func(b *Buffer) { p.put(class, b.data[:size]) }), nil
}

func (p *Pool) getSmall(n int) *Buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), smallestBits) - smallestBits
	if b, ok := p.small[class].Get().(*Buffer); ok {
		b.data = b.data[:n]
		b.refs.Store(1)
		return b
	}
	back := &p.small[class]
	return Wrap(make([]byte, n, 1<<(class+smallestBits)), false, func(b *Buffer) { back.Put(b) })
}

func (p *Pool) take(class int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.free[class]
	if len(list) == 0 {
		return nil
	}
	mem := list[len(list)-1]
	list[len(list)-1] = nil
	p.free[class] = list[:len(list)-1]
	p.freeBytes -= int64(len(mem))
	p.unused = min(p.unused, p.freeBytes)
	return mem
}

func (p *Pool) put(class int, mem []byte) {
	size := int64(len(mem))
	p.inUse.Add(-size)
	p.memory.Retire(mem)
	p.mu.Lock()
	if p.freeBytes+size <= p.keep {
		p.free[class] = append(p.free[class], mem)
		p.freeBytes += size
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.memory.Unmap(mem)
}

// Trim returns all free mapped memory to the operating system.
func (p *Pool) Trim() { p.trim(math.MaxInt64) }

// TrimUnused returns the memory that has been free since the last call, so that a recurring
// load keeps the memory that it needs.
func (p *Pool) TrimUnused() {
	p.mu.Lock()
	n := p.unused
	p.mu.Unlock()
	p.trim(n)
}

// trim gives back up to so many free bytes, in the largest buffers that fit.
func (p *Pool) trim(bytes int64) {
	var out [][]byte
	p.mu.Lock()
	for class := len(p.free) - 1; class >= 0; class-- {
		for list := p.free[class]; len(list) > 0 && int64(len(list[0])) <= bytes; list = p.free[class] {
			mem := list[len(list)-1]
			list[len(list)-1] = nil
			p.free[class] = list[:len(list)-1]
			bytes -= int64(len(mem))
			p.freeBytes -= int64(len(mem))
			out = append(out, mem)
		}
	}
	p.unused = p.freeBytes
	p.mu.Unlock()
	for _, mem := range out {
		p.memory.Unmap(mem)
	}
}

// classOf returns the class for n bytes and the class's size: the next of
// four steps per power of two, so that at most a fifth is wasted.
func classOf(n int) (class, size int) {
	top := bits.Len(uint(n - 1)) // 2^(top-1) < n <= 2^top
	step := 1 << (top - 3)       // a quarter of 2^(top-1)
	quarter := (n - 1<<(top-1) + step - 1) / step
	return 4*(top-1) + quarter - 1, 1<<(top-1) + quarter*step
}
