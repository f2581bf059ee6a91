package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// drawing says how a command draws inputs.
type drawing struct {
	Shapes []string `name:"shape" sep:"none" placeholder:"NAME=N,N" help:"Shape of an input, including rows; required if dimensions after the first are open. Repeat the flag for several."`
	Ranges []string `name:"range" sep:"none" placeholder:"NAME=LOW:HIGH" help:"Range of random numbers for an input; by default -1:1 for floating-point types and 0:10 for others, without the upper bound. Repeat the flag for several."`
	Seed   uint64   `name:"seed" default:"1" help:"Seed of what is drawn: equal seeds draw the same."`
}

// check refuses settings that are not NAME=VALUE.
func (d *drawing) check(inputs []string) error {
	for _, text := range slices.Concat(d.Shapes, d.Ranges, inputs) {
		if name, value, ok := strings.Cut(text, "="); !ok || name == "" || value == "" {
			return errs.New(errs.ConfigInvalid, "%q: want NAME=VALUE", text)
		}
	}
	return nil
}

// of returns a function that draws the inputs of a request for a model. Those that are
// given as NAME=VALUE are not drawn.
func (d *drawing) of(about *client.Metadata, rows int64, inputs []string) (func() []client.Tensor, error) {
	given := make(map[string]client.Tensor)
	if len(inputs) > 0 {
		list, err := (&infer{Inputs: inputs}).inputs(about)
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			given[t.Name] = t
		}
	}
	drawn, ranges := slices.Clone(about.Inputs), make([]values.Range, len(about.Inputs))
	for i := range drawn {
		if _, ok := given[drawn[i].Name]; ok {
			continue
		}
		var err error
		if drawn[i].Shape, err = d.shape(&drawn[i], rows); err != nil {
			return nil, err
		}
		if ranges[i], err = d.rangeOf(&drawn[i]); err != nil {
			return nil, err
		}
	}
	for _, text := range slices.Concat(d.Shapes, d.Ranges) {
		name, _, _ := strings.Cut(text, "=")
		if !slices.ContainsFunc(drawn, func(in client.Description) bool { return in.Name == name }) {
			return nil, errs.New(errs.InputUnexpected, "the model has no input %q: it takes %s", name, takes(about))
		}
	}
	rng := rand.New(rand.NewPCG(d.Seed, 0)) //nolint:gosec // not for secrets
	return func() (list []client.Tensor) {
		for i, in := range drawn {
			if t, ok := given[in.Name]; ok {
				list = append(list, t)
				continue
			}
			list = append(list, values.Random(rng, in, ranges[i]))
		}
		return list
	}, nil
}

// mostElements bounds a drawn input.
const mostElements = 1 << 28

// shape is that of an input: the stated one, or the model's with the rows.
func (d *drawing) shape(of *client.Description, rows int64) (tensor.Shape, error) {
	shape := slices.Clone(of.Shape)
	if text, ok := settingOf(d.Shapes, of.Name); ok {
		shape = shape[:0]
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseInt(part, 10, 64)
			if err != nil || n < 0 {
				return nil, errs.New(errs.ConfigInvalid, "--shape=%s=%s: want numbers with commas between them, rows included", of.Name, text)
			}
			shape = append(shape, n)
		}
	} else if len(shape) > 0 && shape[0] < 0 {
		shape[0] = rows
	}
	if i := slices.IndexFunc(shape, func(n int64) bool { return n < 0 }); i >= 0 {
		return nil, errs.New(errs.ConfigInvalid, "dimension %d of input '%s' %s is open: state the shape with --shape %s=...", i+1, of.Name, of.Shape, of.Name)
	}
	if n, ok := shape.Elements(); !ok || n > mostElements {
		return nil, errs.New(errs.ConfigInvalid, "input '%s' would have more than %d elements", of.Name, mostElements)
	}
	return shape, nil
}

// rangeOf is from where the numbers of an input are drawn.
func (d *drawing) rangeOf(of *client.Description) (values.Range, error) {
	text, ok := settingOf(d.Ranges, of.Name)
	if !ok {
		return values.DefaultRange(of.Datatype), nil
	}
	low, high, _ := strings.Cut(text, ":")
	var r values.Range
	var err, errHigh error
	r.Low, err = strconv.ParseFloat(low, 64)
	r.High, errHigh = strconv.ParseFloat(high, 64)
	if err != nil || errHigh != nil || !(r.High > r.Low) {
		return r, errs.New(errs.ConfigInvalid, "--range=%s=%s: want LOW:HIGH, such as 0:30000", of.Name, text)
	}
	return r, nil
}

// settingOf returns what a list of NAME=VALUE says of a name: the last one does.
func settingOf(list []string, of string) (value string, ok bool) {
	for _, text := range list {
		if name, said, _ := strings.Cut(text, "="); name == of {
			value, ok = said, true
		}
	}
	return value, ok
}
