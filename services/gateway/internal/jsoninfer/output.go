package jsoninfer

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
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
			if err == nil {
				out.name, err = d.known(d.model.Outputs, name)
			}
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
	d.env.Outputs = append(d.env.Outputs, OutputForm{Name: out.name, Binary: out.binary, Shared: out.hasRegion})
	if out.hasRegion {
		d.env.SharedOutputs = append(d.env.SharedOutputs, regions.Output{Name: out.name, Range: out.region})
	}
	if out.classes > 0 {
		d.env.Classes = append(d.env.Classes, classify.Output{Name: out.name, Classes: out.classes})
	}
	return nil
}

type outputForm struct {
	name      string
	region    regions.Range
	hasRegion bool
	binary    bool
	classes   uint64
}

func (d *Decoder) outputParameter(key []byte, out *outputForm) (err error) {
	switch string(key) {
	case "binary_data":
		out.binary, err = d.flag("binary_data")
	case "classification":
		out.classes, err = d.unsigned("classification", errNonUnsigned)
	default:
		var named bool
		named, err = d.regionParameter(key, &out.region)
		out.hasRegion = out.hasRegion || named
	}
	return err
}

// regionParameter reads a tensor parameter that inputs and outputs have in common. It reports whether the
// parameter describes a region.
func (d *Decoder) regionParameter(key []byte, of *regions.Range) (named bool, err error) {
	switch string(key) {
	case "shared_memory_region":
		var name []byte
		if name, err = d.text("shared_memory_region"); err == nil {
			of.Region, err = d.keep(name)
		}
		return true, err
	case "shared_memory_offset":
		of.Offset, err = d.unsigned("shared_memory_offset", errNonUnsigned)
	case "shared_memory_byte_size":
		of.Size, err = d.unsigned("shared_memory_byte_size", errNonUnsigned)
	default:
		err = d.s.skip()
	}
	return false, err
}

func (out *outputForm) check() error {
	switch {
	case out.hasRegion && out.classes > 0:
		return errs.New(errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'classification'")
	case out.hasRegion && out.binary:
		return errs.New(errs.InvalidParameter, "Output can't set both 'shared_memory_region' and 'binary_data'")
	}
	return nil
}
