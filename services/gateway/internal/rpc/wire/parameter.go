package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/protoscan"
)

// parameter reads an entry of a map of parameters.
func (d *decoder) parameter(c *protoscan.Cursor, list *[]infer.Parameter) error {
	m, err := d.entry(c)
	var p infer.Parameter
	for err == nil && m.Left() > 0 {
		var f protoscan.Field
		if f, err = m.Field(); err == nil {
			err = d.parameterField(f, &m, &p)
		}
	}
	*list = append(*list, p)
	return err
}

func (d *decoder) parameterField(f protoscan.Field, c *protoscan.Cursor, p *infer.Parameter) error {
	switch f {
	case protoscan.Text(1):
		return d.string(c, &p.Key)
	case protoscan.Text(2):
		return d.value(c, &p.Value)
	}
	return c.SkipField(f)
}

func (d *decoder) value(c *protoscan.Cursor, v *any) error {
	m, err := c.Message()
	for err == nil && m.Left() > 0 {
		var f protoscan.Field
		if f, err = m.Field(); err == nil {
			err = d.valueField(f, &m, v)
		}
	}
	return err
}

func (d *decoder) valueField(f protoscan.Field, c *protoscan.Cursor, v *any) error {
	switch f {
	case protoscan.Text(3):
		var s string
		err := d.string(c, &s)
		*v = s
		return err
	case protoscan.Fixed64(4):
		bits, err := c.Fixed64()
		*v = math.Float64frombits(bits)
		return err
	case protoscan.Varint(1), protoscan.Varint(2), protoscan.Varint(5):
		n, err := c.Varint()
		*v = integer(f.Num, n)
		return err
	}
	return c.SkipField(f)
}

// integer returns the value of a parameter that is encoded as a varint.
func integer(num protowire.Number, n uint64) any {
	switch num {
	case 1:
		return protowire.DecodeBool(n)
	case 2:
		return int64(n)
	}
	return n
}
