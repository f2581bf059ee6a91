package export

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const (
	// inlineTensor is the size in bytes from which a tensor is named rather
	// than carried by its message, and inlineTotal what one message carries at
	// most.
	inlineTensor = 8 << 10
	inlineTotal  = 32 << 10
)

// Exports are the tensors that a process exports to others. It is safe for concurrent use.
type Exports struct {
	arena *shm.Arena // nil: no memory is shared

	mu      sync.Mutex
	private uint64         // the last number of a slot that is not shared; guarded by mu
	slots   map[slot]*lent // guarded by mu
}

// lent is a buffer that others may read. Several tensors may lie in it.
type lent struct {
	buffer *tensor.Buffer // with one reference
	uses   int            // by tensors
}

// slot is what tells the slots of one holder apart.
type slot struct{ region, start, generation uint64 }

func slotOf(r tensor.Ref) slot { return slot{r.Region, r.Slot, r.Generation} }

// NewExports makes exports of slots in arena; with nil all are of memory that is
// not shared.
func NewExports(arena *shm.Arena) *Exports {
	return &Exports{arena: arena, slots: make(map[slot]*lent)}
}

// Lease keeps exported tensors readable. The zero Lease exports nothing.
type Lease struct {
	exports *Exports
	slots   []slot // one for each tensor
}

// Lend returns the tensors as a message of this process, the holder, carries
// them: those that are too large to be carried are named instead, and can be read
// until the lease is released. The caller keeps its own references as long as
// it likes. Tensors that another process holds stay as they are. Where nothing is
// named, it returns the list itself.
func (e *Exports) Lend(tensors []infer.Tensor, holder uint64) (named []infer.Tensor, lease Lease) {
	named = tensors
	carried := int64(0)
	for i := range tensors {
		data := tensors[i].Data
		if data.Place != tensor.Local {
			continue
		}
		if data.Length < inlineTensor && carried+data.Length <= inlineTotal {
			carried += data.Length
			continue
		}
		if lease.exports == nil {
			named = append([]infer.Tensor(nil), tensors...)
			lease = Lease{exports: e, slots: make([]slot, 0, len(tensors)-i)}
		}
		at := e.lend(data)
		at.Place, at.Holder = tensor.Remote, holder
		named[i].Data = at
		lease.slots = append(lease.slots, slotOf(at))
	}
	return named, lease
}

// lend names a tensor and keeps its buffer. Several tensors of a request may lie
// in one slot, and one may be lent for several requests: a name of its own tells
// those apart that are not in the arena.
func (e *Exports) lend(data tensor.Ref) tensor.Ref {
	e.mu.Lock()
	defer e.mu.Unlock()
	named, shared := tensor.Ref{}, false
	if e.arena != nil {
		named, shared = e.arena.Name(data)
	}
	if !shared {
		e.private++
		named = tensor.Ref{Generation: e.private, Offset: data.Offset, Length: data.Length}
	}
	s := slotOf(named)
	if at := e.slots[s]; at != nil {
		at.uses++
	} else {
		e.slots[s] = &lent{data.Buffer.Retain(), 1}
	}
	return named
}

// Empty reports whether the lease exports nothing.
func (l *Lease) Empty() bool { return len(l.slots) == 0 }

// Release ends the lease: its tensors can no longer be read, except those that another lease
// exports too. Releasing it again has no effect.
func (l *Lease) Release() {
	if l.exports != nil {
		l.exports.release(l.slots)
	}
	*l = Lease{}
}

func (e *Exports) release(slots []slot) {
	var over []*tensor.Buffer
	e.mu.Lock()
	for _, s := range slots {
		at := e.slots[s]
		if at.uses--; at.uses == 0 {
			delete(e.slots, s)
			over = append(over, at.buffer)
		}
	}
	e.mu.Unlock()
	for _, b := range over {
		b.Release()
	}
}

// Len returns the number of exported buffers.
func (e *Exports) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.slots)
}

// find returns the bytes that a peer names, with a reference on them that is
// the caller's. The error has the reason transfer_failed.
func (e *Exports) find(named tensor.Ref) (tensor.Ref, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.slots[slotOf(named)]
	switch {
	case at == nil:
		return tensor.Ref{}, errs.New(errs.TransferFailed, "a tensor of %d bytes is lent no more: the request that it belongs to has ended", named.Length)
	case named.Offset < 0 || named.Length < 0 || named.Offset > int64(at.buffer.Len())-named.Length:
		return tensor.Ref{}, errs.New(errs.TransferFailed, "%d bytes at %d of a tensor were asked for, which lies in %d bytes", named.Length, named.Offset, at.buffer.Len())
	}
	return tensor.InBuffer(at.buffer.Retain(), named.Offset, named.Length), nil
}

// part returns the bytes of one of the lent tensors, or of a part of it, that a
// peer names by their place in the arena, with a reference on them that is the
// caller's. The error has the reason transfer_failed.
func (e *Exports) part(of []infer.Tensor, named tensor.Ref) (tensor.Ref, error) {
	at, n := named.Slot, named.Length
	for i := range of {
		r := of[i].Data
		first := r.Slot + uint64(r.Offset)
		if r.Place != tensor.Remote || r.Holder != named.Holder || r.Region != shm.Number ||
			at < first || at-first > uint64(r.Length) || n < 0 || uint64(n) > uint64(r.Length)-(at-first) {
			continue
		}
		r.Offset, r.Length = int64(at-r.Slot), n
		return e.find(r)
	}
	return tensor.Ref{}, errs.New(errs.TransferFailed, "an input of %d bytes is none of the request's, or the request has ended", n)
}
