package codec

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// The places of a TensorRef.
const (
	inlinePlace protowire.Number = 1
	arenaPlace  protowire.Number = 2
	remotePlace protowire.Number = 3
)

// RequestBytes is how many bytes of a request its client has chosen that travel
// with it: the same at both ends of a stream.
func RequestBytes(r *infer.Request) int64 { return infer.LocalBytes(r.Inputs) + r.DescriptorBytes() }

// tensor writes a tensor. One that its reader would refuse is refused here, where that
// fails its message and not the stream.
func (w *Writer) tensor(num protowire.Number, t *infer.Tensor) {
	if !fits(t) {
		w.fail(errs.New(errs.TransferFailed, "tensor %q of datatype %s and shape %s has %d bytes, which are not those of its shape", t.Name, t.Datatype, t.Shape, t.Data.Length))
		return
	}
	m := w.open(num)
	w.text(1, t.Name)
	w.number(2, uint64(t.Datatype))
	if len(t.Shape) > 0 {
		shape := w.open(3)
		for _, d := range t.Shape {
			w.bytes = protowire.AppendVarint(w.bytes, uint64(d))
		}
		w.close(shape)
	}
	if t.Data.Place != tensor.Nowhere {
		w.ref(4, t.Data)
	}
	w.close(m)
}

func (w *Writer) ref(num protowire.Number, r tensor.Ref) {
	m := w.open(num)
	switch r.Place {
	case tensor.Local:
		w.data(inlinePlace, r)
	case tensor.Arena:
		slot := w.open(arenaPlace)
		w.number(1, r.Region)
		w.number(2, r.Generation)
		w.number(3, uint64(r.Offset))
		w.number(4, uint64(r.Length))
		w.number(5, r.Slot)
		w.close(slot)
	case tensor.Remote:
		slot := w.open(remotePlace)
		w.slot(r)
		w.close(slot)
	}
	w.close(m)
}

// slot writes the fields of a RemoteSlot.
func (w *Writer) slot(r tensor.Ref) {
	w.number(1, r.Holder)
	w.number(2, r.Region)
	w.number(3, r.Generation)
	w.number(4, uint64(r.Offset))
	w.number(5, uint64(r.Length))
	w.number(6, r.Slot)
}

// tensor reads a tensor into the list. Shapes lie in the memory of dims as long
// as that has room.
func (s *scan) tensor(list *[]infer.Tensor, dims *[]int64) {
	s.rd.entry()
	*list = append(*list, infer.Tensor{})
	t := &(*list)[len(*list)-1]
	t.Shape = (*dims)[len(*dims):]
	add := func(d uint64) { t.Shape = append(t.Shape, int64(d)) }
	expect := s.Left()
	m := s.message()
	for m.next() {
		switch {
		case m.field == text(1):
			t.Name = m.name()
		case m.field == varint(2):
			t.Datatype = datatype(m.number())
		case m.field == text(4):
			m.ref(&t.Data, expect)
		case !m.list(3, add):
			m.skip()
		}
	}
	if n := len(*dims) + len(t.Shape); n <= cap(*dims) {
		*dims = (*dims)[:n]
	}
	t.Shape = t.Shape[:len(t.Shape):len(t.Shape)]
	if s.rd.err == nil {
		s.checkTensor(t)
	}
}

func datatype(v uint64) tensor.Datatype {
	if v > uint64(tensor.BF16) {
		return tensor.Invalid
	}
	return tensor.Datatype(v)
}

// checkTensor refuses a tensor whose bytes are not those of its shape: what reads
// it goes by the shape.
func (s *scan) checkTensor(t *infer.Tensor) {
	if !fits(t) {
		s.rd.fail(malformed("tensor %q of datatype %s and shape %s comes with %d bytes", t.Name, t.Datatype, t.Shape, t.Data.Length))
	}
}

// fits reports whether a tensor has as many bytes as its shape says; of strings, whether
// the shape is one.
func fits(t *infer.Tensor) bool {
	if t.Datatype == tensor.Bytes {
		_, ok := t.Shape.Elements()
		return ok
	}
	n, ok := t.Shape.ByteSize(t.Datatype)
	return ok && n == t.Data.Length
}

// ref reads the place of a tensor's bytes, and copies them if they are there;
// of the members of a oneof the last counts. expect is the most that may follow
// in the same message.
func (s *scan) ref(r *tensor.Ref, expect int) {
	m := s.message()
	for m.next() {
		switch m.field {
		case text(inlinePlace):
			m.replace(r)
			m.inline(r, expect)
		case text(arenaPlace):
			m.become(r, tensor.Arena)
			m.arena(r)
		case text(remotePlace):
			m.become(r, tensor.Remote)
			m.remote(r)
		default:
			m.skip()
		}
	}
	if r.Length < 0 || r.Offset < 0 || r.Offset > math.MaxInt64-r.Length {
		s.rd.fail(malformed("a tensor of %d bytes at %d", r.Length, r.Offset))
	}
}

func (s *scan) become(r *tensor.Ref, p tensor.Place) {
	if r.Place != p {
		s.replace(r)
		r.Place = p
	}
}

// replace gives up the bytes that came first. The packer, which holds no
// reference of its own, may not use their buffer any more.
func (s *scan) replace(r *tensor.Ref) {
	if r.Place == tensor.Local {
		s.rd.pack = tensor.Packer{}
	}
	r.Release()
}

func (s *scan) inline(r *tensor.Ref, expect int) {
	m := s.message()
	if s.rd.err != nil || m.Left() == 0 {
		return
	}
	placed, err := s.rd.pack.Place(s.rd.pool, m.Left(), expect)
	if err != nil {
		s.rd.fail(errs.Wrap(errs.MemoryFull, err, "no memory for a tensor of %d bytes: %v", m.Left(), err))
		return
	}
	*r = placed
	b, _ := r.Bytes() // it is local
	m.CopyTo(b)
}

func (s *scan) arena(r *tensor.Ref) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			r.Region = m.number()
		case varint(2):
			r.Generation = m.number()
		case varint(3):
			r.Offset = int64(m.number())
		case varint(4):
			r.Length = int64(m.number())
		case varint(5):
			r.Slot = m.number()
		default:
			m.skip()
		}
	}
}

func (s *scan) remote(r *tensor.Ref) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			r.Holder = m.number()
		case varint(2):
			r.Region = m.number()
		case varint(3):
			r.Generation = m.number()
		case varint(4):
			r.Offset = int64(m.number())
		case varint(5):
			r.Length = int64(m.number())
		case varint(6):
			r.Slot = m.number()
		default:
			m.skip()
		}
	}
}
