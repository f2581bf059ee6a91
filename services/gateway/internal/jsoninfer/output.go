package jsoninfer

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
)

func (d *Decoder) output() error {
	if d.s.peek() != '{' {
		if err := d.s.skip(); err != nil {
			return err
		}
		return missing("name")
	}
	var seen member
	out := outputForm{}
	err := d.s.object(func(key []byte) error {
		switch {
		case string(key) == "name" && first(&seen, memberName):
			name, err := d.text("name")
			out.name = known(d.model.Outputs, name)
			return err
		case string(key) == "parameters" && first(&seen, memberParameters) && d.s.peek() == '{':
			return d.s.object(func(key []byte) error { return d.outputParameter(key, &out) })
		}
		return d.s.skip()
	})
	switch {
	case err != nil:
		return err
	case seen&memberName == 0:
		return missing("name")
	}
	if err := out.check(); err != nil {
		return err
	}
	d.request.Outputs = append(d.request.Outputs, infer.Output{Name: out.name})
	d.env.Outputs = append(d.env.Outputs, OutputForm{Name: out.name, Binary: out.binary})
	if out.classes > 0 {
		d.env.Classes = append(d.env.Classes, classify.Output{Name: out.name, Classes: out.classes})
	}
	return nil
}

type outputForm struct {
	name, region string
	hasRegion    bool
	binary       bool
	classes      uint64
}

func (d *Decoder) outputParameter(key []byte, out *outputForm) (err error) {
	switch string(key) {
	case "binary_data":
		out.binary, err = d.flag("binary_data")
	case "classification":
		out.classes, err = d.unsigned("classification", errNonUnsigned)
	case "shared_memory_region":
		var name []byte
		name, err = d.text("shared_memory_region")
		out.region, out.hasRegion = string(name), true
	case "shared_memory_offset", "shared_memory_byte_size":
		_, err = d.unsigned(string(key), errNonUnsigned)
	default:
		err = d.s.skip()
	}
	return err
}

func (out *outputForm) check() error {
	switch {
	case out.hasRegion && out.classes > 0:
		return errs.New(errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'classification'")
	case out.hasRegion && out.binary:
		return errs.New(errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'binary_data'")
	case out.hasRegion:
		return unknownRegion(out.region)
	}
	return nil
}

func unknownRegion(name string) error {
	return errs.New(errs.RegionNotFound, "Unable to find shared memory region: '%s'", name)
}
