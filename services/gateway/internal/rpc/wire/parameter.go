package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
)

// parameter reads an entry of a map of parameters.
func (d *decoder) parameter(c *cursor, list *[]infer.Parameter) error {
	m, err := d.entry(c)
	var p infer.Parameter
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = d.parameterField(f, &m, &p)
		}
	}
	*list = append(*list, p)
	return err
}

func (d *decoder) parameterField(f field, c *cursor, p *infer.Parameter) error {
	switch f {
	case text(1):
		return d.string(c, &p.Key)
	case text(2):
		return d.value(c, &p.Value)
	}
	return c.skipField(f)
}

func (d *decoder) value(c *cursor, v *any) error {
	m, err := c.message()
	for err == nil && m.left > 0 {
		var f field
		if f, err = m.field(); err == nil {
			err = d.valueField(f, &m, v)
		}
	}
	return err
}

func (d *decoder) valueField(f field, c *cursor, v *any) error {
	switch f {
	case text(3):
		var s string
		err := d.string(c, &s)
		*v = s
		return err
	case field{4, protowire.Fixed64Type}:
		bits, err := c.fixed64()
		*v = math.Float64frombits(bits)
		return err
	case field{1, protowire.VarintType}, field{2, protowire.VarintType}, field{5, protowire.VarintType}:
		n, err := c.varint()
		*v = integer(f.num, n)
		return err
	}
	return c.skipField(f)
}

// integer is the value of a parameter that travels as a varint.
func integer(num protowire.Number, n uint64) any {
	switch num {
	case 1:
		return protowire.DecodeBool(n)
	case 2:
		return int64(n)
	}
	return n
}
