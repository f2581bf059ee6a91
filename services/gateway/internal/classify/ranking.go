package classify

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// candidate is a class and the rank of its score.
type candidate struct {
	rank  uint64
	class int
}

// compare puts the better candidate first.
func compare(a, b candidate) int {
	if a.rank != b.rank {
		return cmp.Compare(b.rank, a.rank)
	}
	return cmp.Compare(a.class, b.class)
}

// ranking finds the best classes of rows, one row after another. It collects up to twice as many candidates as
// requested and then sorts them, so that most scores of a long row cost one comparison, and none costs more
// than a share of a short sort.
type ranking struct {
	datatype tensor.Datatype
	wanted   int // at least 1
	room     int // maximum number of candidates that are retained
	best     []candidate
}

func newRanking(d tensor.Datatype, wanted, elements int) *ranking {
	room := min(2*wanted, elements)
	return &ranking{datatype: d, wanted: wanted, room: room, best: make([]candidate, 0, room)}
}

// of returns the best classes of a row, the best first. They are valid until
// the next call.
func (r *ranking) of(row []byte) []candidate {
	r.best = r.best[:0]
	size, full, floor := r.datatype.Size(), false, uint64(0)
	for class := 0; len(row) > 0; class++ {
		rank := rankOf(r.datatype, row)
		row = row[size:]
		if full && rank <= floor {
			continue // of equal ones the earlier wins
		}
		r.best = append(r.best, candidate{rank, class})
		if len(r.best) == r.room {
			r.cut()
			full, floor = true, r.best[r.wanted-1].rank
		}
	}
	r.cut()
	return r.best
}

// cut retains only the requested number of best candidates.
func (r *ranking) cut() {
	slices.SortFunc(r.best, compare)
	r.best = r.best[:min(r.wanted, len(r.best))]
}

// scores reports whether values of a datatype can be scores.
func scores(d tensor.Datatype) bool {
	switch d {
	case tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64,
		tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64, tensor.FP32, tensor.FP64:
		return true
	}
	return false
}

// rankOf maps the first value of data to a number with the same order as the values.
func rankOf(d tensor.Datatype, data []byte) uint64 {
	le := binary.LittleEndian
	switch d {
	case tensor.FP32:
		return floatRank(float64(math.Float32frombits(le.Uint32(data))))
	case tensor.FP64:
		return floatRank(math.Float64frombits(le.Uint64(data)))
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		return unsigned(d, data)
	}
	return uint64(signed(d, data)) ^ 1<<63
}

// floatRank maps numbers to ordered bits: negative numbers inverted, below the others; both zeros equal; NaN
// lowest.
func floatRank(f float64) uint64 {
	switch {
	case f > 0:
		return math.Float64bits(f) | 1<<63
	case f < 0:
		return ^math.Float64bits(f)
	case f == 0:
		return 1 << 63
	}
	return 0
}

func unsigned(d tensor.Datatype, data []byte) uint64 {
	le := binary.LittleEndian
	switch d {
	case tensor.Uint8:
		return uint64(data[0])
	case tensor.Uint16:
		return uint64(le.Uint16(data))
	case tensor.Uint32:
		return uint64(le.Uint32(data))
	}
	return le.Uint64(data)
}

func signed(d tensor.Datatype, data []byte) int64 {
	le := binary.LittleEndian
	switch d {
	case tensor.Int8:
		return int64(int8(data[0]))
	case tensor.Int16:
		return int64(int16(le.Uint16(data)))
	case tensor.Int32:
		return int64(int32(le.Uint32(data)))
	}
	return int64(le.Uint64(data))
}
