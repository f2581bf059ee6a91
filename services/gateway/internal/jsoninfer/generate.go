package jsoninfer

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// DecodeGenerate decodes the JSON body of a generate request for model into r. A member with the name of an
// input becomes that tensor, whose shape follows from the model's shape and the number of elements; any other
// member becomes a parameter. The members of "parameters" are read in the same way. As in Triton no name is
// reserved, and "id" is both the request's id and a parameter. Unlike Triton it reads nested arrays as their
// elements in row-major order. On an error r may already hold tensors: the caller always releases it.
func (d *Decoder) DecodeGenerate(body []byte, model *modelconfig.Config, r *infer.Request) error {
	return d.decode(body, model, r, nil, d.generate)
}

// nested is the member of a generate request whose members are read like its own.
const nested = "parameters"

func (d *Decoder) generate() error {
	d.s.byteOrderMark()
	switch d.s.peek() {
	case 0:
		return d.s.fail(emptyDocument)
	case '{':
	default:
		if err := d.s.skip(); err != nil {
			return err
		}
		if err := d.s.end(); err != nil {
			return err
		}
		return errs.New(errs.InvalidJSON, "attempt to get members for non-object")
	}
	err := d.s.object(func(key []byte) error {
		switch string(key) {
		case nested:
			return d.generateNested()
		case "id":
			return d.generateID()
		}
		return d.generateMember(key)
	})
	if err != nil {
		return err
	}
	return d.s.end()
}

// generateNested reads the members of "parameters".
func (d *Decoder) generateNested() error {
	object := d.s.peek() == '{'
	from := d.s.pos
	if err := d.s.skip(); err != nil { // invalid JSON is reported as such
		return err
	}
	switch {
	case d.model.Input(nested) != nil:
		return errs.New(errs.InvalidParameter, "Keyword '%s' for nested schema also given as input tensor name", nested)
	case !object:
		return errs.New(errs.InvalidJSON, "Expected JSON object for keyword: '%s': attempt to access JSON non-object as object", nested)
	}
	d.s.pos = from
	if err := d.s.object(d.generateMember); err != nil {
		e := errs.From(err)
		return errs.Wrap(e.Reason, err, "Converting keyword: '%s': %s", nested, e.Msg)
	}
	return nil
}

// generateID reads the request's id, which is also an input or a parameter.
func (d *Decoder) generateID() error {
	d.s.peek()
	from := d.s.pos
	id, err := d.text("id")
	if err != nil {
		return err
	}
	if first(&d.seen, memberID) {
		if d.request.ID, err = d.keep(id); err != nil {
			return err
		}
	}
	d.s.pos = from
	return d.generateMember([]byte("id"))
}

func (d *Decoder) generateMember(key []byte) error {
	if err := d.entry(); err != nil {
		return err
	}
	if io := d.model.Input(string(key)); io != nil {
		return d.generateInput(io)
	}
	name, err := d.keep(key)
	if err != nil {
		return err
	}
	return d.value(name)
}

func (d *Decoder) generateInput(io *modelconfig.IO) error {
	d.s.peek()
	from := d.s.pos
	count, err := d.s.countAt(0)
	if err != nil {
		return err
	}
	shape := slices.Clone(d.model.ClientShape(io))
	if !fit(shape, count) {
		return errs.New(errs.ShapeMismatch, "The schema can not convert input '%s' to tensor with proper shape", io.Name)
	}
	d.request.Inputs = append(d.request.Inputs, infer.Tensor{Name: io.Name, Datatype: io.Datatype, Shape: shape})
	d.s.pos = from
	return d.readData(&input{Tensor: &d.request.Inputs[len(d.request.Inputs)-1], lone: true})
}

// fit replaces the variable dimensions of shape so that it has count elements: the last one takes everything
// that the fixed ones leave, and the others are 1. It reports whether that is possible.
func fit(shape tensor.Shape, count int64) bool {
	for _, dim := range slices.Backward(shape) {
		if dim > 0 {
			if count%dim != 0 {
				return false
			}
			count /= dim
		}
	}
	for i, dim := range slices.Backward(shape) {
		if dim < 0 {
			shape[i], count = count, 1
		}
	}
	return count == 1
}

// countAt skips a value and returns the number of elements in its arrays.
func (s *scanner) countAt(depth int) (count int64, err error) {
	if depth > MaxDepth {
		return 0, tooDeep()
	}
	if s.peek() != '[' {
		return 1, s.skipAt(depth)
	}
	err = s.array(func() error {
		n, err := s.countAt(depth + 1)
		count += n
		return err
	})
	return count, err
}

// AppendGenerated appends the response p to the generate request id for the given model: an object with the
// outputs and parameters by name, ordered by name. An output with one element is not an array. If a name
// repeats, the first one wins, in this order: the id, the model and its version, the parameters, the outputs.
// The memory that dst lacks is charged to the budget before it is allocated; the caller returns it.
func AppendGenerated(dst []byte, id string, model infer.ModelRef, p *infer.Response, b *memory.Account) ([]byte, error) {
	type member struct {
		name      string
		text      string
		parameter *infer.Parameter
		output    *infer.Tensor
	}
	members := make([]member, 0, 3+len(p.Parameters)+len(p.Outputs))
	if id != "" {
		members = append(members, member{name: "id", text: id})
	}
	members = append(members,
		member{name: "model_name", text: model.Name},
		member{name: "model_version", text: strconv.FormatInt(model.Version, 10)})
	for i := range p.Parameters {
		members = append(members, member{name: p.Parameters[i].Key, parameter: &p.Parameters[i]})
	}
	for i := range p.Outputs {
		members = append(members, member{name: p.Outputs[i].Name, output: &p.Outputs[i]})
	}
	slices.SortStableFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	members = slices.CompactFunc(members, func(a, b member) bool { return a.name == b.name })
	dst = append(dst, '{')
	for i := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, members[i].name), ':')
		var err error
		switch m := &members[i]; {
		case m.parameter != nil:
			dst, err = appendValue(dst, m.parameter)
		case m.output != nil:
			dst, err = appendElements(dst, m.output, b)
		default:
			dst, err = appendText(dst, m.text, b)
		}
		if err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendElements appends the elements of t as an array, or a single element by itself.
func appendElements(dst []byte, t *infer.Tensor, b *memory.Account) ([]byte, error) {
	if n, ok := t.Shape.Elements(); ok && n == 1 {
		return AppendData(dst, t, b)
	}
	dst, err := AppendData(append(dst, '['), t, b)
	return append(dst, ']'), err
}
