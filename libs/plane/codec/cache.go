package codec

import (
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// CacheUse writes a CacheUse.
func (w *Writer) CacheUse(u *infer.CacheUse) error {
	begun := w.begin(GatewayCacheUse)
	w.model(1, &u.Model)
	w.bool(2, u.Hit)
	w.number(3, nanoseconds(u.Time))
	return w.end(begun)
}

// CacheUse reads a CacheUse.
func (r *Reader) CacheUse(b Body) (u infer.CacheUse, err error) {
	s := r.begin(b)
	for s.next() {
		switch s.field {
		case text(1):
			s.model(&u.Model)
		case varint(2):
			u.Hit = s.bool()
		case varint(3):
			u.Time = time.Duration(s.number())
		default:
			s.skip()
		}
	}
	return u, r.end()
}
