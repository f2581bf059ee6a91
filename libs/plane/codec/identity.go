package codec

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
)

// work writes a WorkId, the first field of whatever has one.
func (w *Writer) work(v *infer.Work) {
	m := w.open(1)
	w.requestID(1, v.Request)
	w.number(2, uint64(v.Attempt))
	w.number(3, v.Epoch)
	w.number(4, v.Revision)
	w.number(5, uint64(v.Step))
	w.number(6, uint64(v.Iteration))
	w.close(m)
}

func (w *Writer) requestID(num protowire.Number, id infer.RequestID) {
	m := w.open(num)
	w.number(1, id.Origin)
	w.number(2, id.Number)
	w.close(m)
}

func (w *Writer) model(num protowire.Number, v *infer.ModelRef) {
	m := w.open(num)
	w.text(1, v.Name)
	w.number(2, uint64(v.Version))
	w.number(3, v.Generation)
	w.text(4, v.Namespace)
	w.close(m)
}

func (w *Writer) instance(num protowire.Number, id infer.InstanceID) {
	m := w.open(num)
	w.number(1, id.Worker)
	w.number(2, uint64(id.Slot))
	w.close(m)
}

func (s *scan) work(v *infer.Work) {
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			m.requestID(&v.Request)
		case varint(2):
			v.Attempt = uint32(m.number())
		case varint(3):
			v.Epoch = m.number()
		case varint(4):
			v.Revision = m.number()
		case varint(5):
			v.Step = uint32(m.number())
		case varint(6):
			v.Iteration = uint32(m.number())
		default:
			m.skip()
		}
	}
}

func (s *scan) requestID(id *infer.RequestID) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			id.Origin = m.number()
		case varint(2):
			id.Number = m.number()
		default:
			m.skip()
		}
	}
}

func (s *scan) model(v *infer.ModelRef) {
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			v.Name = m.name()
		case varint(2):
			v.Version = int64(m.number())
		case varint(3):
			v.Generation = m.number()
		case text(4):
			v.Namespace = m.name()
		default:
			m.skip()
		}
	}
}

func (s *scan) instance(id *infer.InstanceID) {
	m := s.message()
	for m.next() {
		switch m.field {
		case varint(1):
			id.Worker = m.number()
		case varint(2):
			id.Slot = uint32(m.number())
		default:
			m.skip()
		}
	}
}
