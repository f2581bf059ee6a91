package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
)

// shown is how many elements of an output the table has.
const shown = 16

// infer runs one request on a server.
type infer struct {
	Model   string   `arg:"" name:"model" help:"Model to run."`
	Version string   `name:"version" placeholder:"N" help:"Version of the model, instead of its default one."`
	Inputs  []string `name:"input" short:"i" sep:"none" placeholder:"NAME=VALUE" help:"An input: a file (.json, .npy, .png, .txt, .bin) or JSON; repeat the flag for several."`
	Outputs []string `name:"output" short:"o" sep:"none" placeholder:"NAME" help:"An output to request, instead of all; repeat the flag for several."`
	JSON    bool     `name:"json" help:"Print JSON."`
	Server  server   `embed:""`
}

// Help explains the values and shows examples.
func (infer) Help() string {
	return `The model's metadata say which datatype and shape an input takes.

A .json file and JSON on the command line are a number, a string, or nested lists. A .npy file is an array of the model's datatype. A .png file is scaled to the model's height and width; integers get 0 to 255, floats 0 to 1, BYTES the file as it is. A .txt file is for BYTES, an element for each line, or for UINT8, the text's bytes; so is a JSON string for UINT8. A .bin file has the tensor's bytes.

Leading dimensions of 1 are added, and a list that fills the model's shape is cut into it.

Examples:

    nereid infer simple --input INPUT0=[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16] --input INPUT1=b.npy
    nereid infer digits --input image=seven.png --output probabilities --json
    nereid infer language --protocol grpc --url gpu1:8001 --timeout 200ms --input 'text="Wie geht es dir?"'
    nereid infer digits --input image=seven.png --header 'infer-key: SECRET'

The last one is for a server with --http-restricted-api=inference,metadata:infer-key=SECRET. With --grpc-restricted-protocol the header is triton-grpc-protocol-infer-key.`
}

// Validate refuses inputs that are none.
func (i *infer) Validate() error {
	seen := make(map[string]bool)
	for _, text := range i.Inputs {
		name, _, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return errs.New(errs.ConfigInvalid, "--input=%s: want NAME=FILE or NAME=JSON", text)
		}
		if seen[name] {
			return errs.New(errs.ConfigInvalid, "--input=%s is given twice", name)
		}
		seen[name] = true
	}
	return nil
}

// Run prints the response of the model.
func (i *infer) Run(ctx context.Context, stdout io.Writer) error {
	return i.Server.ask(ctx, func(ctx context.Context, c client.Client) error {
		about, err := c.Metadata(ctx, i.Model, i.Version)
		if err != nil {
			return err
		}
		inputs, err := i.inputs(about)
		if err != nil {
			return err
		}
		response, err := c.Infer(ctx, &client.Request{Model: i.Model, Version: i.Version, Inputs: inputs, Outputs: i.Outputs})
		if err != nil {
			return err
		}
		if i.JSON {
			return printResponseJSON(stdout, response)
		}
		return printResponse(stdout, response)
	})
}

// inputs reads the values for the inputs of the model.
func (i *infer) inputs(about *client.Metadata) ([]client.Tensor, error) {
	if len(i.Inputs) == 0 {
		return nil, errs.New(errs.InputMissing, "no inputs are given: the model takes %s", takes(about))
	}
	tensors := make([]client.Tensor, len(i.Inputs))
	for at, text := range i.Inputs {
		name, value, _ := strings.Cut(text, "=")
		input := slices.IndexFunc(about.Inputs, func(d client.Description) bool { return d.Name == name })
		if input < 0 {
			return nil, errs.New(errs.InputUnexpected, "the model has no input %q: it takes %s", name, takes(about))
		}
		var err error
		if tensors[at], err = values.Read(about.Inputs[input], value); err != nil {
			return nil, err
		}
	}
	return tensors, nil
}

func takes(about *client.Metadata) string {
	texts := make([]string, len(about.Inputs))
	for i, d := range about.Inputs {
		texts[i] = fmt.Sprintf("--input %s=%s%s", d.Name, d.Datatype, d.Shape)
	}
	return strings.Join(texts, " ")
}

func printResponse(w io.Writer, r *client.Response) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "OUTPUT\tDATATYPE\tSHAPE\tVALUES")
	for _, t := range r.Outputs {
		elements, err := values.Elements(t, shown+1)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", t.Name, t.Datatype, t.Shape, line(elements))
	}
	return table.Flush()
}

func line(elements []json.RawMessage) string {
	var b strings.Builder
	for i, e := range elements {
		if i == shown {
			b.WriteString(" …")
			break
		}
		if i > 0 {
			b.WriteString(" ")
		}
		b.Write(e)
	}
	return b.String()
}

// responseJSON is the protocol's own form of a response.
type (
	responseJSON struct {
		Model   string       `json:"model_name"`
		Version string       `json:"model_version"`
		Outputs []outputJSON `json:"outputs"`
	}
	outputJSON struct {
		Name     string            `json:"name"`
		Datatype string            `json:"datatype"`
		Shape    []int64           `json:"shape"`
		Data     []json.RawMessage `json:"data"`
	}
)

func printResponseJSON(w io.Writer, r *client.Response) error {
	out := responseJSON{Model: r.Model, Version: r.Version, Outputs: make([]outputJSON, len(r.Outputs))}
	for i, t := range r.Outputs {
		elements, err := values.Elements(t, -1)
		if err != nil {
			return err
		}
		out.Outputs[i] = outputJSON{Name: t.Name, Datatype: t.Datatype.String(), Shape: append([]int64{}, t.Shape...), Data: elements}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(out)
}
