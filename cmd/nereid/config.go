package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/process"
	gateway "github.com/nereid-serving/nereid/services/gateway/command"
	registry "github.com/nereid-serving/nereid/services/registry/command"
	scheduler "github.com/nereid-serving/nereid/services/scheduler/command"
	worker "github.com/nereid-serving/nereid/services/worker/command"
)

// configuration shows the settings of services.
type configuration struct {
	Explain explainSettings `cmd:"" help:"List the settings of a service, or of all: name, variable, type, default and meaning."`
	Print   printSettings   `cmd:"" help:"Print the settings that are in force under a command line and this environment, with where each comes from."`
	Check   checkSettings   `cmd:"" help:"Tell what is wrong with a file of settings."`
}

// programs are those whose settings can be shown, by name.
func programs() []process.Program {
	return []process.Program{gateway.Program(), scheduler.Program(), worker.Program(), registry.Program(), served()}
}

// served is nereid serve as a program.
func served() process.Program {
	return process.Program{Name: "serve", Vars: variables(), Settings: &servedSettings{Serve: newServe()}}
}

// servedSettings are serve's, checked as a whole.
type servedSettings struct {
	Serve serve `embed:""`
}

// Validate returns what is wrong with the settings.
func (s *servedSettings) Validate(command *kong.Context) error { return s.Serve.Validate(command) }

// programOf finds a program by its name.
func programOf(name string) (process.Program, error) {
	var names []string
	for _, p := range programs() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return process.Program{}, errs.New(errs.ConfigInvalid, "there is no service %q: want %s", name, strings.Join(names, ", "))
}

// explainSettings lists the settings there are.
type explainSettings struct {
	Service string `arg:"" optional:"" help:"Service: gateway, scheduler, worker, registry, or serve for all in one process."`
}

// Help shows examples.
func (explainSettings) Help() string {
	return `Examples:

    nereid config explain
    nereid config explain worker`
}

// Validate refuses an unknown service.
func (c *explainSettings) Validate() error {
	if c.Service == "" {
		return nil
	}
	_, err := programOf(c.Service)
	return err
}

// Run prints a paragraph for each setting.
func (c *explainSettings) Run(stdout io.Writer) error {
	list := programs()
	if c.Service != "" {
		p, err := programOf(c.Service)
		if err != nil {
			return err
		}
		list = []process.Program{p}
	}
	for i, p := range list {
		if i > 0 {
			fmt.Fprintln(stdout)
		}
		if err := explain(stdout, p); err != nil {
			return err
		}
	}
	return nil
}

func explain(out io.Writer, p process.Program) error {
	settings, err := p.Explain()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", p.Name)
	for _, s := range settings {
		fmt.Fprintf(out, "\n  %s (%s): %s%s\n", s.Name, s.Variable, s.Type, wrap(withDefault(s), "      "))
	}
	return nil
}

func withDefault(s process.Setting) string {
	if s.Default == "" {
		return "\n" + s.Help
	}
	return ", by default " + s.Default + "\n" + s.Help
}

// wrap breaks the lines of a text before they reach the end of a terminal's,
// and indents all but the first.
func wrap(text, indent string) string {
	const width = 80
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		if i == 0 {
			b.WriteString(line)
			continue
		}
		at := width
		for _, word := range strings.Fields(line) {
			if at+1+len(word) > width {
				b.WriteString("\n" + indent + word)
				at = len(indent) + len(word)
				continue
			}
			b.WriteString(" " + word)
			at += 1 + len(word)
		}
	}
	return b.String()
}

// printSettings prints what is in force. The service and its flags are one
// argument for kong, which knows no flags of services.
type printSettings struct {
	Line []string `arg:"" name:"service" passthrough:"" help:"Service, and its flags."`
}

// Help shows examples.
func (printSettings) Help() string {
	return `What is printed is a file of settings again, but for secrets, which are hidden.

Examples:

    nereid config print gateway
    nereid config print worker --config worker.yaml --pool large`
}

// Validate refuses an unknown service.
func (c *printSettings) Validate() error {
	if len(c.Line) == 0 { // help is asked for
		return nil
	}
	_, err := programOf(c.Line[0])
	return err
}

// Run prints a line for each setting.
func (c *printSettings) Run(stdout io.Writer) error {
	p, err := programOf(c.Line[0])
	if err != nil {
		return err
	}
	values, err := p.Print(c.Line[1:], os.LookupEnv)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 1, ' ', 0)
	for _, v := range values {
		fmt.Fprintf(w, "%s: %s\t# %s\n", v.Name, v.Text, v.Source)
	}
	return w.Flush()
}

// checkSettings checks a file.
type checkSettings struct {
	Service string `arg:"" help:"Service: gateway, scheduler, worker, registry or serve."`
	File    string `arg:"" help:"File of settings."`
}

// Help shows an example.
func (checkSettings) Help() string {
	return `Example:

    nereid config check worker worker.yaml`
}

// Validate refuses an unknown service.
func (c *checkSettings) Validate() error {
	if c.Service == "" { // help is asked for
		return nil
	}
	_, err := programOf(c.Service)
	return err
}

// Run prints that the file is good, or returns what is wrong with it.
func (c *checkSettings) Run(stdout io.Writer) error {
	p, err := programOf(c.Service)
	if err != nil {
		return err
	}
	nothing := func(string) (string, bool) { return "", false }
	if _, err := p.Print([]string{"--config=" + c.File}, nothing); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: good settings of %s\n", c.File, p.Name)
	return err
}

// settingsOf reads the file and the environment of a command line of nereid,
// unless it asks about the settings of other programs, whose they are then.
func settingsOf(args []string, env func(string) (string, bool)) (*config.Settings, error) {
	if at := commandAt(args); at >= 0 && args[at] == "config" {
		return config.Read(nil, func(string) (string, bool) { return "", false })
	}
	return config.Read(args, env)
}
