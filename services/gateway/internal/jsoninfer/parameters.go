package jsoninfer

import (
	"math"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// parameters reads the request's "parameters": those of the protocol into their fields, the others for the
// model.
func (d *Decoder) parameters() error {
	if d.s.peek() != '{' {
		if err := d.s.skip(); err != nil {
			return err
		}
		return errs.New(errs.InvalidJSON, "failed to get request params.: attempt to get members for non-object")
	}
	return d.s.object(d.parameter)
}

// maxTimeout is the longest timeout in microseconds: half of the range, so that it can be added to the current
// time.
const maxTimeout = math.MaxInt64 / 2 / uint64(time.Microsecond)

func (d *Decoder) parameter(key []byte) (err error) {
	if err := d.entry(); err != nil {
		return err
	}
	r := d.request
	switch string(key) {
	case "sequence_id":
		return d.sequenceID()
	case "sequence_start":
		r.Sequence.Start, err = d.flag("sequence_start")
	case "sequence_end":
		r.Sequence.End, err = d.flag("sequence_end")
	case "priority":
		r.Priority, err = d.unsigned("priority", errNonUnsigned)
	case "timeout":
		var micros uint64
		micros, err = d.unsigned("timeout", errNonUnsigned)
		r.Timeout = time.Duration(min(micros, maxTimeout)) * time.Microsecond
	case "binary_data_output":
		d.env.BinaryOutputs, err = d.flag("binary_data_output")
	default:
		name, err := d.keep(key)
		if err != nil {
			return err
		}
		return d.custom(name)
	}
	return err
}

// sequenceID reads a correlation ID, a number or a string.
func (d *Decoder) sequenceID() error {
	if d.s.peek() == '"' {
		key, err := d.s.str()
		if err != nil {
			return err
		}
		d.request.Sequence.ID = 0
		d.request.Sequence.Key, err = d.keep(key)
		return err
	}
	id, err := d.unsigned("sequence_id", errNonString)
	d.request.Sequence.ID, d.request.Sequence.Key = id, ""
	return err
}

func (d *Decoder) custom(key string) error {
	if strings.HasPrefix(key, "triton_") {
		return errs.New(errs.InvalidParameter,
			"parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
	}
	return d.value(key)
}

// value reads the value of a parameter for the model.
func (d *Decoder) value(key string) error {
	value, err := d.scalar()
	switch {
	case err != nil:
		return err
	case value == nil:
		return errs.New(errs.InvalidParameter, "parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.", key)
	}
	d.request.Parameters = append(d.request.Parameters, infer.Parameter{Key: key, Value: value})
	return nil
}

// scalar reads a value and returns it with the type that parameters have: a float64 also for integers that
// exceed an int64, and nil for null, arrays and objects.
func (d *Decoder) scalar() (any, error) {
	switch d.s.peek() {
	case '"':
		text, err := d.s.str()
		if err != nil {
			return nil, err
		}
		return d.keep(text)
	case 't', 'f':
		v, _, err := d.s.boolean()
		return v, err
	case 'n', '[', '{':
		return nil, d.s.skip()
	}
	var n number
	if err := d.s.number(&n); err != nil {
		return nil, err
	}
	if v, ok := n.int64(); ok {
		return v, nil
	}
	f, ok := n.float64()
	if !ok {
		return nil, d.s.tooBig(&n)
	}
	return f, nil
}
