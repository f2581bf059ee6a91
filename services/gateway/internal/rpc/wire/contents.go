package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// contents reads the typed contents of an input into tensor bytes. It passes
// over them twice: to count, and to fill memory of the right size.
func (d *decoder) contents(input cursor, in *Input) error {
	var count contents
	if err := count.input(input); err != nil {
		return err
	}
	size := count.size(in.Datatype)
	if in.err = d.checkContents(&count, in, size); in.err != nil || size == 0 {
		return nil
	}
	ref, err := d.place(int(size), int(size))
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

// checkContents refuses values of another kind than the input's datatype.
// Two kinds cannot both be right, so the first wrong one is the answer.
func (d *decoder) checkContents(t *contents, in *Input, size int64) error {
	for kind := boolContents; kind < contentsEnd; kind++ {
		if given := datatypeOf(kind, in.Datatype); t.elements[kind] > 0 && given != in.Datatype {
			return d.refuse("unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%s', expected datatype '%s'",
				in.Name, d.Model, given, in.Datatype)
		}
	}
	// Numbers can take eight times their size on the wire.
	if size > math.MaxInt32 {
		return errs.New(errs.InputTooLarge, "contents of input '%s' for model '%s' take %d bytes, more than %d: send them in raw_input_contents",
			in.Name, d.Model, size, math.MaxInt32).WithModel(d.Model)
	}
	return nil
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
