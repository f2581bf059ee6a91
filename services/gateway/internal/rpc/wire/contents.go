package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// maxContents bounds typed contents in bytes of tensor: integers can take
// eight times their size on the wire.
const maxContents = math.MaxInt32

// contents reads the typed contents of an input into tensor bytes. It passes
// over them twice: to count, and to fill memory of the right size.
func (d *decoder) contents(input protoscan.Cursor, in *Input) error {
	if d.typed += input.Left(); d.typed >= memory.LargeBody {
		if err := d.account.StartCoding(d.ctx); err != nil {
			return err
		}
	}
	var count contents
	if err := count.input(input); err != nil {
		return err
	}
	in.size = count.size(in.Datatype)
	in.given, in.several = count.datatype(in.Datatype)
	if in.several || in.given != in.Datatype || in.size > maxContents || in.size == 0 {
		return nil
	}
	n := int(in.size)
	ref, err := d.place(n, n)
	if err != nil {
		return err
	}
	in.contents = ref
	dst, err := ref.Bytes()
	if err != nil {
		return err
	}
	fill := contents{filling: true, dst: dst, width: in.Datatype.Size()}
	return fill.input(input)
}

// datatype is what the values are if the input is said to be want: want, or
// that of the first kind if it is another. Values of a further kind are one
// kind too many.
func (t *contents) datatype(want tensor.Datatype) (given tensor.Datatype, several bool) {
	given = want
	kinds := 0
	for kind := boolContents; kind < contentsEnd && given == want; kind++ {
		if t.elements[kind] == 0 {
			continue
		}
		if kinds++; kinds > 1 {
			return want, true
		}
		given = datatypeOf(kind, want)
	}
	return given, false
}

// datatypeOf is the datatype that a kind of contents has for an input that is
// said to be want: 8- and 16-bit integers travel as 32-bit ones.
func datatypeOf(kind protowire.Number, want tensor.Datatype) tensor.Datatype {
	switch kind {
	case boolContents:
		return tensor.Bool
	case intContents:
		if want == tensor.Int8 || want == tensor.Int16 {
			return want
		}
		return tensor.Int32
	case int64Contents:
		return tensor.Int64
	case uintContents:
		if want == tensor.Uint8 || want == tensor.Uint16 {
			return want
		}
		return tensor.Uint32
	case uint64Contents:
		return tensor.Uint64
	case fp32Contents:
		return tensor.FP32
	case fp64Contents:
		return tensor.FP64
	}
	return tensor.Bytes
}
