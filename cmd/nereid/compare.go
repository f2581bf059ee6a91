package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// comparison holds the outputs of a model against another's.
type comparison struct {
	Reference string `arg:"" help:"Model whose outputs are right."`
	Variant   string `arg:"" optional:"" help:"Model whose outputs are held against them; without it the same model, of the server at --other-url."`
	OtherURL  string `name:"other-url" placeholder:"HOST:PORT" help:"Where the variant is, if on another server: this one's or Triton's."`

	Requests  int      `name:"requests" default:"16" help:"How many requests to compare."`
	Rows      int64    `name:"rows" default:"1" help:"Rows of each request, where the first dimension of an input is open."`
	Shapes    []string `name:"shape" sep:"none" placeholder:"NAME=N,N" help:"Shape of an input, rows included; needed where dimensions behind the first are open. Repeat the flag for several."`
	Ranges    []string `name:"range" sep:"none" placeholder:"NAME=LOW:HIGH" help:"Numbers to draw for an input: from -1:1 for floating-point ones and 0:10 for others, the upper bound excluded, without it. Repeat the flag for several."`
	Inputs    []string `name:"input" short:"i" sep:"none" placeholder:"NAME=VALUE" help:"An input that is not drawn, as of infer; repeat the flag for several."`
	Seed      uint64   `name:"seed" default:"1" help:"Begins the drawing: equal seeds draw the same."`
	Tolerance float64  `name:"tolerance" default:"1e-4" help:"By how much a floating-point number may differ."`
	Relative  float64  `name:"relative-tolerance" default:"1e-3" help:"And by how much more, as a share of the right one."`
	Server    server   `embed:""`
}

// Help says how to use it.
func (comparison) Help() string {
	return `Both get the same drawn inputs. An output that is beyond the tolerance in any element, and one that is not a floating-point number and differs at all, has the command fail. AGREE is how many rows of an output have their largest number at the same place, as classes have.

Examples:

    nereid compare resnet50 resnet50_bf16 --requests 64 --tolerance 0.02
    nereid compare bert bert_bf16 --shape input_ids=1,64 --shape attention_mask=1,64 --range input_ids=0:30000 --range attention_mask=1:2
    nereid compare digits --url localhost:8000 --other-url triton:8000`
}

// Validate refuses what cannot be.
func (c *comparison) Validate() error {
	switch {
	case c.Variant == "" && c.OtherURL == "":
		return errs.New(errs.ConfigInvalid, "there is nothing to compare with: name a second model, or another server with --other-url")
	case c.Requests < 1 || c.Rows < 1:
		return errs.New(errs.ConfigInvalid, "--requests is %d and --rows %d: want 1 or more", c.Requests, c.Rows)
	case !(c.Tolerance >= 0) || !(c.Relative >= 0):
		return errs.New(errs.ConfigInvalid, "--tolerance is %v and --relative-tolerance %v: want 0 or more", c.Tolerance, c.Relative)
	}
	for _, text := range slices.Concat(c.Shapes, c.Ranges, c.Inputs) {
		if name, value, ok := strings.Cut(text, "="); !ok || name == "" || value == "" {
			return errs.New(errs.ConfigInvalid, "%q: want NAME=VALUE", text)
		}
	}
	return nil
}

// Run prints how the outputs differ.
func (c *comparison) Run(ctx context.Context, stdout io.Writer) error {
	other := c.Server
	other.URL = cmp.Or(c.OtherURL, other.URL)
	return c.Server.ask(ctx, func(ctx context.Context, reference client.Client) error {
		return other.ask(ctx, func(ctx context.Context, variant client.Client) error {
			return c.compare(ctx, stdout, reference, variant)
		})
	})
}

// compared is an output with its differences.
type compared struct {
	output     client.Description
	difference values.Difference
}

func (c *comparison) compare(ctx context.Context, stdout io.Writer, reference, variant client.Client) error {
	about, err := reference.Metadata(ctx, c.Reference, "")
	if err != nil {
		return err
	}
	draw, err := c.drawing(about)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0)) //nolint:gosec // not for secrets
	var all []compared
	for range c.Requests {
		inputs := draw(rng)
		right, err := reference.Infer(ctx, &client.Request{Model: c.Reference, Inputs: inputs})
		if err != nil {
			return err
		}
		held, err := variant.Infer(ctx, &client.Request{Model: cmp.Or(c.Variant, c.Reference), Inputs: inputs})
		if err != nil {
			return err
		}
		if all, err = c.add(all, right, held); err != nil {
			return err
		}
	}
	return c.report(stdout, all)
}

// add compares the outputs of one request.
func (c *comparison) add(all []compared, right, held *client.Response) ([]compared, error) {
	for _, output := range right.Outputs {
		at := slices.IndexFunc(held.Outputs, func(t client.Tensor) bool { return t.Name == output.Name })
		if at < 0 {
			return nil, errs.New(errs.ConfigInvalid, "the variant has no output %q", output.Name)
		}
		d, err := values.Compare(output, held.Outputs[at], values.Tolerance{Absolute: c.Tolerance, Relative: c.Relative})
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(all, func(o compared) bool { return o.output.Name == output.Name })
		if i < 0 {
			i, all = len(all), append(all, compared{output: output.Description})
		}
		all[i].difference.Add(d)
	}
	return all, nil
}

func (c *comparison) report(stdout io.Writer, all []compared) error {
	table := tabwriter.NewWriter(stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "OUTPUT\tDATATYPE\tELEMENTS\tLARGEST DIFFERENCE\tMEAN\tBEYOND\tAGREE")
	beyond := 0
	for _, o := range all {
		d := &o.difference
		agree := "-"
		if d.Rows > 0 {
			agree = fmt.Sprintf("%d of %d", d.Agree, d.Rows)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%.3g\t%.3g\t%d\t%s\n", o.output.Name, o.output.Datatype, d.Elements, d.Largest, d.Sum/float64(max(d.Elements, 1)), d.Beyond, agree)
		beyond += d.Beyond
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if beyond > 0 {
		return errs.New(errs.ConfigInvalid, "%d elements differ by more than %v and %v of their value: see --tolerance and --relative-tolerance", beyond, c.Tolerance, c.Relative)
	}
	return nil
}

// drawing returns what draws the inputs of a request.
func (c *comparison) drawing(about *client.Metadata) (func(*rand.Rand) []client.Tensor, error) {
	given := make(map[string]client.Tensor)
	if len(c.Inputs) > 0 {
		list, err := (&infer{Inputs: c.Inputs}).inputs(about)
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
		if drawn[i].Shape, err = c.shape(&drawn[i]); err != nil {
			return nil, err
		}
		if ranges[i], err = c.rangeOf(&drawn[i]); err != nil {
			return nil, err
		}
	}
	for _, text := range slices.Concat(c.Shapes, c.Ranges) {
		name, _, _ := strings.Cut(text, "=")
		if !slices.ContainsFunc(drawn, func(d client.Description) bool { return d.Name == name }) {
			return nil, errs.New(errs.InputUnexpected, "the model has no input %q: it takes %s", name, takes(about))
		}
	}
	return func(rng *rand.Rand) (list []client.Tensor) {
		for i, d := range drawn {
			if t, ok := given[d.Name]; ok {
				list = append(list, t)
				continue
			}
			list = append(list, values.Random(rng, d, ranges[i]))
		}
		return list
	}, nil
}

// mostElements bounds a drawn input.
const mostElements = 1 << 28

// shape is that of an input: the stated one, or the model's with the rows.
func (c *comparison) shape(of *client.Description) (tensor.Shape, error) {
	shape := slices.Clone(of.Shape)
	if text, ok := settingOf(c.Shapes, of.Name); ok {
		shape = shape[:0]
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseInt(part, 10, 64)
			if err != nil || n < 0 {
				return nil, errs.New(errs.ConfigInvalid, "--shape=%s=%s: want numbers with commas between them, rows included", of.Name, text)
			}
			shape = append(shape, n)
		}
	} else if len(shape) > 0 && shape[0] < 0 {
		shape[0] = c.Rows
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
func (c *comparison) rangeOf(of *client.Description) (values.Range, error) {
	text, ok := settingOf(c.Ranges, of.Name)
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
