package jsoninfer

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// input is an element of "inputs" while it is read.
type input struct {
	*infer.Tensor
	seen   member
	size   uint64 // binary_data_size
	region regions.Range
	// data is where a "data" member starts that could not be decoded yet because its datatype or shape was
	// unknown; 0 means none.
	data int
	// lone says that "data" may be an element without an enclosing array.
	lone bool
}

// toReadData is what must be known before "data" can be decoded.
const toReadData = memberName | memberDatatype | memberShape

func (d *Decoder) input() error {
	if d.s.peek() != '{' {
		if err := d.s.skip(); err != nil {
			return err
		}
		return (&input{}).oneSource()
	}
	if d.request.Inputs == nil {
		d.request.Inputs = make([]infer.Tensor, 0, len(d.model.Inputs))
	}
	d.request.Inputs = append(d.request.Inputs, infer.Tensor{})
	in := input{Tensor: &d.request.Inputs[len(d.request.Inputs)-1]}
	if err := d.s.object(func(key []byte) error { return d.inputMember(key, &in) }); err != nil {
		return err
	}
	if err := in.check(); err != nil {
		return err
	}
	switch {
	case in.seen&memberBinary != 0:
		d.env.Binary = append(d.env.Binary, BinaryInput{Index: len(d.request.Inputs) - 1, Size: in.size})
	case in.seen&memberRegion != 0:
		d.env.SharedInputs = append(d.env.SharedInputs, regions.Input{Index: len(d.request.Inputs) - 1, Range: in.region})
	case in.data > 0:
		after := d.s.pos
		d.s.pos = in.data
		if err := d.readData(&in); err != nil {
			return err
		}
		d.s.pos = after
	}
	return nil
}

func (d *Decoder) inputMember(key []byte, in *input) (err error) {
	var m member
	switch string(key) {
	case "name":
		m = memberName
	case "datatype":
		m = memberDatatype
	case "shape":
		m = memberShape
	case "data":
		m = memberData
	case "parameters":
		m = memberParameters
	}
	if !first(&in.seen, m) {
		return d.s.skip()
	}
	var text []byte
	switch m {
	case memberName:
		if text, err = d.text("name"); err == nil {
			in.Name, err = d.known(d.model.Inputs, text)
		}
	case memberDatatype:
		text, err = d.text("datatype")
		in.Datatype, _ = tensor.ParseDatatype(string(text))
	case memberShape:
		err = d.shape(in)
	case memberData:
		err = d.data(in)
	case memberParameters:
		err = d.inputParameters(in)
	}
	return err
}

func (d *Decoder) shape(in *input) error {
	from := len(d.dims)
	if err := d.list("shape", d.dim); err != nil {
		return err
	}
	in.Shape = tensor.Shape(d.dims[from:len(d.dims):len(d.dims)])
	return nil
}

func (d *Decoder) dim() error {
	u, err := d.unsigned("shape", errNonUnsigned)
	if err != nil {
		return err
	}
	if u > math.MaxInt64 {
		return unable("shape", fmt.Sprintf("dimension %d exceeds maximum size of %d", u, int64(math.MaxInt64)))
	}
	if d.dims == nil {
		d.dims = make([]int64, 0, 8)
	}
	d.dims = append(d.dims, int64(u))
	return nil
}

func (d *Decoder) inputParameters(in *input) error {
	if d.s.peek() != '{' {
		return d.s.skip()
	}
	return d.s.object(func(key []byte) (err error) {
		switch string(key) {
		case "binary_data_size":
			in.seen |= memberBinary
			in.size, err = d.unsigned("binary_data_size", errNonUnsigned)
		default:
			var named bool
			if named, err = d.regionParameter(key, &in.region); named {
				in.seen |= memberRegion
			}
		}
		return err
	})
}

// check checks the object as a whole, in Triton's order.
func (in *input) check() error {
	if err := in.oneSource(); err != nil {
		return err
	}
	switch {
	case in.seen&memberName == 0:
		return missing("name")
	case in.seen&memberDatatype == 0:
		return missing("datatype")
	case in.seen&memberShape == 0:
		return missing("shape")
	}
	return nil
}

func (in *input) oneSource() error {
	sources := in.seen & (memberData | memberBinary | memberRegion)
	if bits.OnesCount(uint(sources)) == 1 {
		return nil
	}
	set := " no field is set"
	if sources != 0 {
		set = " set"
	}
	if sources&memberData != 0 {
		set += " 'data'"
	}
	if sources&memberBinary != 0 {
		set += " 'binary_data_size'"
	}
	if sources&memberRegion != 0 {
		set += " 'shared_memory_region'"
	}
	return errs.New(errs.TensorDataInvalid, "Input must set only one of the following fields: 'data', "+
		"'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But%s", set)
}

// data reads the value of "data", immediately if its datatype and shape are known.
func (d *Decoder) data(in *input) error {
	if in.seen&toReadData == toReadData && in.seen&(memberBinary|memberRegion) == 0 {
		return d.readData(in)
	}
	d.s.peek()
	in.data = d.s.pos
	return d.s.skip()
}

// readData decodes the value of "data" into a tensor.
func (d *Decoder) readData(in *input) error {
	n, ok := in.Shape.Elements()
	if ok && n == 0 {
		return d.s.skip() // whatever it is: Triton does not check it either
	}
	switch in.Datatype {
	case tensor.Invalid:
		return errs.New(errs.DatatypeMismatch, "invalid datatype for input %s", in.Name)
	case tensor.FP16, tensor.BF16:
		return errs.New(errs.TensorDataInvalid,
			"receiving %s data via JSON is not supported. Please use the binary data format for input %s", in.Datatype, in.Name)
	}
	switch {
	case !ok:
		return in.tooManyElements()
	case in.Datatype == tensor.Bytes:
		return d.readStrings(in)
	}
	return d.readFixed(in, n)
}

func (in *input) tooManyElements() error {
	return errs.New(errs.ShapeMismatch, "shape %s of input '%s' causes total element count to exceed maximum size of %d",
		in.Shape, in.Name, int64(math.MaxInt64))
}

func (d *Decoder) readFixed(in *input, n int64) error {
	size, ok := in.Shape.ByteSize(in.Datatype)
	if !ok {
		return errs.New(errs.ShapeMismatch, "byte size overflow for input '%s': its shape %s has more than %d bytes of %s",
			in.Name, in.Shape, int64(math.MaxInt64), in.Datatype)
	}
	if err := d.limit(in, size); err != nil {
		return err
	}
	// n elements take at least n digits, n-1 commas and two brackets: a shorter text is refused without
	// allocating memory.
	if left := int64(len(d.s.data) - d.s.pos); n > left/2 && !in.lone { // its elements have been counted
		if d.s.peek() != '[' {
			return unable("data", errNonArray)
		}
		if err := d.s.skip(); err != nil {
			return err
		}
		return wrongCount()
	}
	buf, err := d.hold(size)
	if err != nil {
		return err
	}
	in.Data = tensor.InBuffer(buf, 0, size)
	e := elements{scanner: &d.s, datatype: in.Datatype, dst: buf.Bytes(), limit: n, lone: in.lone}
	_, err = e.read()
	return err
}

func (d *Decoder) readStrings(in *input) error {
	e := elements{scanner: &d.s, datatype: tensor.Bytes, dst: d.strings[:0], lone: in.lone}
	data, err := e.read()
	if err != nil {
		return err
	}
	if cap(data) <= keepStrings {
		d.strings = data
	}
	defer d.s.leave(data)
	if err := d.limit(in, int64(len(data))); err != nil {
		return err
	}
	buf, err := d.hold(int64(len(data)))
	if err != nil {
		return err
	}
	copy(buf.Bytes(), data)
	in.Data = tensor.InBuffer(buf, 0, int64(len(data)))
	return nil
}

// hold charges n bytes and then returns a buffer of that size.
func (d *Decoder) hold(n int64) (*tensor.Buffer, error) {
	if err := d.Account.Receive(n); err != nil {
		return nil, err
	}
	return d.Pool.Get(int(n))
}

func (d *Decoder) limit(in *input, size int64) error {
	if size <= d.MaxTensor {
		return nil
	}
	return errs.New(errs.InputTooLarge, "JSON input '%s' has a byte_size (%d bytes) that exceeds the maximum allowed value of %d bytes. "+
		"Use --http-max-input-size to increase the limit.", in.Name, size, d.MaxTensor)
}
