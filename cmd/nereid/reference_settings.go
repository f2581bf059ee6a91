package main

import (
	"fmt"
	"io"
	"strings"
)

// settingsIntro stands before the services.
const settingsIntro = `<!-- Generated from the settings of the services. Do not edit. -->
# Settings of the services

Each service is also a program of its own: ` + "`bin/gateway`, `bin/scheduler`, `bin/worker` and `bin/registry`" + `. A setting has one name: it is
the flag ` + "`--name`, the key `name`" + ` of the file that ` + "`--config`" + ` names, and the variable beside it here. A flag goes before the environment,
that before the file, that before the default. A key of the file that is no setting of the service is refused with the nearest one; a
variable that is almost a setting is named in a warning of the log, with the setting, and has no effect.

` + "`nereid config explain SERVICE`" + ` prints what stands here, ` + "`nereid config print SERVICE FLAGS`" + ` the values in force with where each comes
from, and ` + "`nereid config check SERVICE FILE`" + ` says what is wrong with a file. The settings of ` + "`nereid serve`" + `, all services in one
process, are in [cli.md](cli.md). Exit statuses and signals are those of ` + "`nereid serve`" + ` too.
`

// writeSettings writes the page of the services' settings.
func writeSettings(out io.Writer) error {
	var b strings.Builder
	b.WriteString(settingsIntro)
	for _, p := range programs() {
		if p.Name == "serve" {
			continue // it is on the page of the command line
		}
		settings, err := p.Explain()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| setting | variable | type | default | meaning |\n|---|---|---|---|---|\n", p.Name, p.Help)
		for _, s := range settings {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", s.Name, s.Variable, s.Type, quoted(s.Default), cell(s.Help))
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
