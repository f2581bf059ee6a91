package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nereid-serving/nereid/libs/client"
)

// models lists what a server's repository holds.
type models struct {
	JSON   bool   `name:"json" help:"Print JSON."`
	Server server `embed:""`
}

// Help shows examples.
func (models) Help() string {
	return `Examples:

    nereid models
    nereid models --url gpu1:8001 --protocol grpc --json
    nereid models --url https://models.example.com/gpu1 --header 'authorization: Bearer TOKEN'`
}

// Run prints the models with their state and its cause.
func (m *models) Run(ctx context.Context, stdout io.Writer) error {
	return m.Server.ask(ctx, func(ctx context.Context, c client.Client) error {
		index, err := c.Index(ctx)
		if err != nil {
			return err
		}
		if m.JSON {
			encoder := json.NewEncoder(stdout)
			encoder.SetIndent("", "  ")
			encoder.SetEscapeHTML(false)
			return encoder.Encode(index)
		}
		return printIndex(stdout, index)
	})
}

func printIndex(w io.Writer, index []client.Model) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "MODEL\tVERSION\tSTATE\tCAUSE")
	for _, m := range index {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", m.Name, m.Version, cmp.Or(m.State, "not loaded"), m.Reason)
	}
	return table.Flush()
}
