package codec

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/protoscan"
)

// parameter writes a Parameter. The member that is set is written also when its
// value is the type's zero.
func (w *Writer) parameter(num protowire.Number, p *infer.Parameter) {
	m := w.open(num)
	w.text(1, p.Key)
	switch v := p.Value.(type) {
	case nil:
	case bool:
		w.bytes = protowire.AppendVarint(protowire.AppendTag(w.bytes, 2, protowire.VarintType), protowire.EncodeBool(v))
	case int64:
		w.bytes = protowire.AppendVarint(protowire.AppendTag(w.bytes, 3, protowire.VarintType), uint64(v))
	case float64:
		w.float(4, v)
	case string:
		w.member(5, v)
	default:
		w.fail(errs.New(errs.InvalidParameter, "parameter %q: services have no type for %T", p.Key, v))
	}
	w.close(m)
}

func (s *scan) parameter(list *[]infer.Parameter) {
	s.rd.entry()
	var p infer.Parameter
	m := s.message()
	for m.next() {
		switch m.field {
		case text(1):
			p.Key = m.name()
		case varint(2):
			p.Value = m.bool()
		case varint(3):
			p.Value = int64(m.number())
		case protoscan.Fixed64(4):
			p.Value = m.float()
		case text(5):
			p.Value = m.string()
		default:
			m.skip()
		}
	}
	*list = append(*list, p)
}
