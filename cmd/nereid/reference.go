package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

//go:generate sh -c "go run . reference > ../../docs/reference/cli.md"
//go:generate sh -c "go run . reference settings > ../../docs/reference/settings.md"

// reference prints the reference page of the command line or of the services'
// settings, from what parses them.
type reference struct {
	Page string `arg:"" optional:"" enum:"cli,settings" default:"cli"`
}

// intro stands before the commands.
const intro = `<!-- Generated from cmd/nereid. Do not edit. -->
# Command line

A flag is given as ` + "`--name value` or `--name=value`" + `; serve takes any beginning of a name that only one flag has, as
Triton does. A setting that is not on the command line is taken from the environment (` + "`NEREID_HTTP_PORT` for `--http-port`" + `),
then from the file that ` + "`--config`" + ` names (` + "`http-port: 9000`" + `), then its default. A misspelled name is refused with the nearest one.

| exit status | meaning |
|---|---|
| 0 | done; for serve: stopped by a signal, after the requests in flight were answered |
| 1 | failed: the message says what, with its [reason](errors.md) where there is one |
| 64 | usage: the command line, the environment or the settings file is wrong, a value out of its range included |

The first Ctrl-C or SIGTERM lets serve finish what it has; the second ends it at once.
`

// Run prints the page.
func (r *reference) Run(command *kong.Context, stdout io.Writer) error {
	if r.Page == "settings" {
		return writeSettings(stdout)
	}
	var b strings.Builder
	b.WriteString(intro)
	for _, n := range leaves(command.Model.Node) {
		writeCommand(&b, n)
		if n.Name == "serve" {
			writeEffects(&b, n)
		}
	}
	_, err := io.WriteString(stdout, b.String())
	return err
}

// leaves lists the commands that run, with those of groups in their place.
func leaves(n *kong.Node) []*kong.Node {
	var list []*kong.Node
	for _, child := range shownCommands(n) {
		if len(child.Children) == 0 {
			list = append(list, child)
		}
		list = append(list, leaves(child)...)
	}
	return list
}

func writeCommand(b *strings.Builder, n *kong.Node) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", n.Path(), n.Help)
	if n.Detail != "" {
		fmt.Fprintf(b, "\n%s\n", n.Detail)
	}
	if len(n.Positional) > 0 {
		b.WriteString("\n| argument | meaning |\n|---|---|\n")
		for _, p := range n.Positional {
			fmt.Fprintf(b, "| `%s` | %s |\n", p.Name, cell(p.Help))
		}
	}
	if flags := ownFlags(n); len(flags) > 0 {
		b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		for _, f := range flags {
			fmt.Fprintf(b, "| `--%s` | %s | %s |\n", f.Name, quoted(defaultOf(f)), cell(f.Help))
		}
	}
}

// ownFlags lists the flags that work for one command alone.
func ownFlags(n *kong.Node) []*kong.Flag {
	var flags []*kong.Flag
	for _, f := range n.Flags {
		if !f.Hidden {
			flags = append(flags, f)
		}
	}
	return flags
}

func writeEffects(b *strings.Builder, n *kong.Node) {
	b.WriteString("\n### Flags of Triton's without effect\n\nThey are taken, and the log names them once.\n\n| flag | why |\n|---|---|\n")
	for _, f := range n.Flags {
		if f.Tag.Get(effectTag) == effectNone {
			fmt.Fprintf(b, "| `--%s` | %s |\n", f.Name, cell(f.Help))
		}
	}
	b.WriteString("\n### Flags of Triton's without effect yet\n\nThey are taken, so that start commands work, and the log names them once.\n\n| flag | what is missing |\n|---|---|\n")
	for _, f := range n.Flags {
		if f.Tag.Get(effectTag) == effectLater {
			fmt.Fprintf(b, "| `--%s` | %s |\n", f.Name, cell(f.Help))
		}
	}
	b.WriteString("\n### Flags of Triton's that are refused\n\nTaking them would be a promise that is not kept.\n\n| flag | taken with | what to do |\n|---|---|---|\n")
	for _, f := range n.Flags {
		if f.Tag.Get(effectTag) == effectRefused {
			fmt.Fprintf(b, "| `--%s` | %s | %s |\n", f.Name, quoted(f.Tag.Get("unless")), cell(f.Help))
		}
	}
}

func defaultOf(f *kong.Flag) string {
	if f.Tag.Has("varies") {
		return "" // it depends on where the program is
	}
	return f.Default
}

func quoted(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", "`, `") + "`"
}

// cell is a text within a table.
func cell(text string) string {
	return strings.ReplaceAll(text, "|", `\|`)
}
