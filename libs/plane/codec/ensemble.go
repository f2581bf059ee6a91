package codec

import (
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// EnsembleEnd writes an EnsembleEnd.
func (w *Writer) EnsembleEnd(e *infer.EnsembleEnd) error {
	begun := w.begin(GatewayEnsembleEnd)
	w.model(1, &e.Model)
	w.bool(2, e.Failed)
	w.number(3, nanoseconds(e.Time))
	w.number(4, uint64(max(e.BatchSize, 0)))
	w.number(5, nanoseconds(e.Input))
	w.number(6, nanoseconds(e.Infer))
	w.number(7, nanoseconds(e.Output))
	return w.end(begun)
}

// EnsembleEnd reads an EnsembleEnd.
func (r *Reader) EnsembleEnd(b Body) (e infer.EnsembleEnd, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case text(1):
			s.model(&e.Model)
		case varint(2):
			e.Failed = s.bool()
		case varint(3):
			e.Time = time.Duration(s.number())
		case varint(4):
			e.BatchSize = int64(s.number()) //nolint:gosec // G115: a peer's count, of which none is trusted
		case varint(5):
			e.Input = duration(s.number())
		case varint(6):
			e.Infer = duration(s.number())
		case varint(7):
			e.Output = duration(s.number())
		default:
			s.skip()
		}
	}
	return e, r.end()
}
