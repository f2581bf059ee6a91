package process

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/config"
)

// Setting is one setting of a program.
type Setting struct {
	// Name is that of its flag and in files, Variable that in the environment.
	Name, Variable string
	// Type describes valid values in words.
	Type string
	// Default is empty where there is none, or where it depends on the machine.
	Default string
	Help    string
	Group   string
}

// Value is a setting's value in force.
type Value struct {
	Name string
	// Text is the value as a file would have it, with secrets hidden.
	Text string
	// Source is a flag, a variable, a file with its line, or "default".
	Source string
}

// Explain lists the program's settings in their order.
func (p Program) Explain() ([]Setting, error) {
	nothing, err := config.Read(nil, func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, err
	}
	parser, err := p.parser(nothing)
	if err != nil {
		return nil, err
	}
	var all []Setting
	for _, f := range shown(parser.Model.Flags) {
		all = append(all, Setting{
			Name: f.Name, Variable: config.EnvName(f.Name), Type: typeOf(f), Default: defaultOf(f), Help: f.Help, Group: f.Group.Title,
		})
	}
	return all, nil
}

// Print lists the values in force under a command line and an environment.
// Errors are those of the program itself.
func (p Program) Print(args []string, env func(string) (string, bool)) ([]Value, error) {
	l, err := p.load(args, io.Discard, io.Discard, env)
	if err != nil {
		return nil, err
	}
	given := make(map[string]bool)
	for _, step := range l.command.Path {
		if step.Flag != nil && !step.Resolved {
			given[step.Flag.Name] = true
		}
	}
	var all []Value
	for _, f := range shown(l.command.Model.Flags) {
		v := Value{Name: f.Name, Text: textOf(f), Source: l.settings.Source(f.Name)}
		if given[f.Name] {
			v.Source = "--" + f.Name
		}
		all = append(all, v)
	}
	return all, nil
}

// shown returns the flags that are settings: those in a group, without Triton's
// that are accepted and have no effect.
func shown(flags []*kong.Flag) []*kong.Flag {
	var list []*kong.Flag
	for _, f := range flags {
		if f.Group != nil && !f.Hidden {
			list = append(list, f)
		}
	}
	return list
}

// defaultOf returns a flag's default, or empty where it depends on the machine: such
// a flag has the tag varies.
func defaultOf(f *kong.Flag) string {
	if f.Tag.Has("varies") {
		return ""
	}
	if f.Default == "" && f.Target.Kind() == reflect.Bool {
		return "false"
	}
	return f.Default
}

func typeOf(f *kong.Flag) string {
	switch {
	case f.Enum != "":
		return "one of " + strings.Join(f.EnumSlice(), ", ")
	case f.Target.Type() == reflect.TypeFor[config.Switch](), f.Target.Kind() == reflect.Bool:
		return "true or false"
	case f.Target.Kind() == reflect.Slice:
		return "list"
	case f.Target.CanInt():
		return "number"
	}
	return "text"
}

// textOf returns a value as a file has it.
func textOf(f *kong.Flag) string {
	if list, ok := f.Target.Interface().([]string); ok {
		quoted := make([]string, len(list))
		for i, text := range list {
			quoted[i] = quote(hidden(f, text))
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	text := fmt.Sprint(f.Target.Interface())
	if f.Target.Kind() == reflect.String {
		return quote(hidden(f, text))
	}
	return text
}

// hidden removes secrets, by the flag's tag secret: the password of a url, the
// value that follows the last = sign, or that of password among settings.
func hidden(f *kong.Flag, text string) string {
	before, _, ok := cutLast(text, "=")
	switch kind := f.Tag.Get("secret"); {
	case kind == "url":
		return bus.Redacted(text)
	case kind == "value" && ok:
		return before + "=***"
	case kind == "password":
		return withoutPassword(text)
	}
	return text
}

// withoutPassword hides the password in settings with commas between them.
func withoutPassword(text string) string {
	settings := strings.Split(text, ",")
	for i, s := range settings {
		if key, _, ok := strings.Cut(s, "="); ok && key == "password" {
			settings[i] = key + "=***"
		}
	}
	return strings.Join(settings, ",")
}

func cutLast(s, sep string) (before, after string, found bool) {
	at := strings.LastIndex(s, sep)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(sep):], true
}

// quote writes a text as a YAML string, bare where that is one.
func quote(text string) string {
	bare := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || r == '/' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if text != "" && strings.TrimFunc(text, bare) == "" && text[0] != '-' {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
