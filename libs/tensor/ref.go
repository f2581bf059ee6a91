package tensor

import "fmt"

// Place is where a tensor's bytes are.
type Place uint8

// The places a reference can name.
const (
	// Nowhere is a reference without bytes: an empty tensor.
	Nowhere Place = iota
	// Local is memory of this process, held by a Buffer.
	Local
	// Arena is a slot of shared memory that this host's processes map.
	Arena
	// Remote is memory of a process on another host, which serves it.
	Remote
)

// Ref names the bytes of one tensor. Copying a Ref copies the name; the
// reference on the bytes belongs to one copy, whose holder calls
// [Ref.Release] (or hands the duty on).
type Ref struct {
	// Place says which of the fields below count.
	Place Place
	// Buffer holds the bytes of a Local reference.
	Buffer *Buffer
	// Holder is the process that serves a Remote reference.
	Holder uint64
	// Region, Slot and Generation name a slot of an Arena or Remote region:
	// Slot is where it begins in the region, in bytes. The generation grows
	// each time a slot is given back, so that a reader notices a slot that was
	// handed out again.
	Region, Slot, Generation uint64
	// Offset and Length are in bytes, within the buffer or slot.
	Offset, Length int64
}

// InBuffer returns a Local reference to n bytes of b from offset on. It takes
// over the caller's reference on b.
func InBuffer(b *Buffer, offset, n int64) Ref {
	return Ref{Place: Local, Buffer: b, Offset: offset, Length: n}
}

// InHeap returns a Local reference to data on the Go heap, which needs no
// pool and is never handed to C.
func InHeap(data []byte) Ref { return InBuffer(Wrap(data, false, nil), 0, int64(len(data))) }

// Bytes returns the bytes of a reference that can be read in this process. It
// fails for Arena and Remote references, which must be resolved first.
func (r Ref) Bytes() ([]byte, error) {
	switch r.Place {
	case Nowhere:
		return nil, nil
	case Local:
		return r.Buffer.Bytes()[r.Offset : r.Offset+r.Length : r.Offset+r.Length], nil
	}
	return nil, fmt.Errorf("tensor bytes lie in place %d, region %d: not mapped here", r.Place, r.Region)
}

// Mapped reports whether the bytes can be handed to C without a copy.
func (r Ref) Mapped() bool { return r.Place == Local && r.Buffer.Mapped() }

// Retain takes another reference on the bytes for the copy that it returns.
func (r Ref) Retain() Ref {
	if r.Buffer != nil {
		r.Buffer.Retain()
	}
	return r
}

// Release gives up the reference on the bytes and empties r. Releasing an
// empty reference does nothing.
func (r *Ref) Release() {
	if r.Buffer != nil {
		r.Buffer.Release()
	}
	*r = Ref{}
}
