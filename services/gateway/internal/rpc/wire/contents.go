package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/protoscan"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// maxContents bounds typed contents, in bytes of tensor: integers can take eight times their size on the wire.
const maxContents = math.MaxInt32

// contents decodes the typed contents of an input into tensor bytes, in two passes: one counts, the other fills
// memory of the right size.
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

// datatype returns the datatype of the values, for an input declared as want: want itself, or the datatype of
// the first other kind. several reports values of more than one kind.
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

// datatypeOf returns the datatype of a kind of contents for an input declared as want: 8- and 16-bit integers
// are sent as 32-bit ones.
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
