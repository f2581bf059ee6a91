package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
)

// comparison holds the outputs of a model against another's.
type comparison struct {
	Reference string `arg:"" help:"Model whose outputs are right."`
	Variant   string `arg:"" optional:"" help:"Model to compare with; by default the same model, on the server at --other-url."`
	OtherURL  string `name:"other-url" placeholder:"HOST:PORT" help:"Address of another server, such as Triton, that has the variant."`

	Requests  int      `name:"requests" default:"16" help:"How many requests to compare."`
	Rows      int64    `name:"rows" default:"1" help:"Rows of each request, if the first dimension of an input is open."`
	Inputs    []string `name:"input" short:"i" sep:"none" placeholder:"NAME=VALUE" help:"An input with a fixed value, as for infer; repeat the flag for several."`
	Draw      drawing  `embed:""`
	Tolerance float64  `name:"tolerance" default:"1e-4" help:"Absolute tolerance for floating-point numbers."`
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
	return c.Draw.check(c.Inputs)
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
	draw, err := c.Draw.of(about, c.Rows, c.Inputs)
	if err != nil {
		return err
	}
	var all []compared
	for range c.Requests {
		inputs := draw()
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
