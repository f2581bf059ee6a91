// Package config reads a process's settings from a file and the environment
// under the names of its command-line flags. A flag takes precedence over the
// environment, the environment over the file, and the file over the default.
//
// The flag --http-port is the key http-port in the file and the variable
// NEREID_HTTP_PORT. An unknown key in the file is an error with its line and the
// nearest name.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/nereid-serving/nereid/libs/errs"
)

// FileFlag is the flag that names the settings file.
const FileFlag = "config"

// isSetting tells settings from the flags that ask something of the program
// itself. Those are given on the command line alone: NEREID_VERSION in an
// environment is most likely about something else.
func isSetting(flag string) bool {
	return flag != FileFlag && flag != "help" && flag != "version"
}

const prefix = "NEREID_"

// byDefault is the source of a setting that nothing gives.
const byDefault = "default"

// Settings are the settings in the file and the environment. They are a [kong.Resolver].
type Settings struct {
	path string
	keys map[string]*yaml.Node
	// lines is where each key of the file stands.
	lines map[string]int
	env   func(string) (string, bool)
}

// Read reads the file that --config in args or NEREID_CONFIG names, if any.
// Errors have the reason config_invalid.
func Read(args []string, env func(string) (string, bool)) (*Settings, error) {
	s := &Settings{env: env, keys: map[string]*yaml.Node{}, lines: map[string]int{}}
	s.path = fileOf(args)
	if s.path == "" {
		s.path, _ = env(prefix + "CONFIG")
	}
	if s.path == "" {
		return s, nil
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot read the settings file: %v", err)
	}
	if err := s.parse(data); err != nil {
		return nil, err
	}
	return s, nil
}

// fileOf finds --config before the flags are parsed, since they are parsed
// with what it says. What stands behind -- is another program's.
func fileOf(args []string) string {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		if value, ok := strings.CutPrefix(arg, "--"+FileFlag+"="); ok {
			return value
		}
		if arg == "--"+FileFlag && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

func (s *Settings) parse(data []byte) error {
	var document yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(data)).Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil // an empty file
	}
	if err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "%s: %v", s.path, err)
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return s.wrong(root.Line, "want settings as name: value")
	}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if _, twice := s.keys[key.Value]; twice {
			return s.wrong(key.Line, "setting %q is given twice", key.Value)
		}
		s.keys[key.Value], s.lines[key.Value] = value, key.Line
	}
	return nil
}

func (s *Settings) wrong(line int, format string, args ...any) error {
	return errs.New(errs.ConfigInvalid, "%s:%d: %s", s.path, line, fmt.Sprintf(format, args...))
}

// Validate rejects keys of the file that are not a flag of any command. All commands may share
// the file.
func (s *Settings) Validate(app *kong.Application) error {
	known := flagNames(app.Node)
	for key := range s.keys {
		if !known[key] {
			return s.unknown(key, known)
		}
	}
	return nil
}

func (s *Settings) unknown(key string, known map[string]bool) error {
	if near := nearest(key, known, len(key)/3+1); near != "" {
		return s.wrong(s.lines[key], "unknown setting %q, did you mean %q?", key, near)
	}
	return s.wrong(s.lines[key], "unknown setting %q", key)
}

func flagNames(n *kong.Node) map[string]bool {
	names := map[string]bool{}
	for _, f := range n.Flags {
		if isSetting(f.Name) {
			names[f.Name] = true
		}
	}
	for _, child := range n.Children {
		for name := range flagNames(child) {
			names[name] = true
		}
	}
	return names
}

// Resolve returns the value of a flag that is not on the command line. An empty variable counts
// as unset, because containers pass unset variables on as empty ones.
func (s *Settings) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag.Name) {
		return nil, nil //nolint:nilnil // kong's way to say that there is none
	}
	if value, ok := s.env(EnvName(flag.Name)); ok && value != "" {
		return value, nil
	}
	node, ok := s.keys[flag.Name]
	if !ok {
		return nil, nil //nolint:nilnil // kong's way to say that there is none
	}
	return s.value(flag.Name, node)
}

// Source returns the origin of a setting that is not on the command line: the variable, the
// file with its line, or "default".
func (s *Settings) Source(setting string) string {
	name := EnvName(setting)
	if value, ok := s.env(name); ok && value != "" {
		return name
	}
	if _, ok := s.keys[setting]; ok {
		return fmt.Sprintf("%s:%d", s.path, s.lines[setting])
	}
	return byDefault
}

// EnvName is the environment variable of a setting.
func EnvName(setting string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

func (s *Settings) value(name string, node *yaml.Node) (any, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		return node.Value, nil
	case yaml.SequenceNode:
		list := make([]any, len(node.Content))
		for i, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return nil, s.wrong(item.Line, "setting %q wants a list of plain values", name)
			}
			list[i] = item.Value
		}
		return list, nil
	}
	return nil, s.wrong(node.Line, "setting %q wants a value or a list, not settings of its own", name)
}
