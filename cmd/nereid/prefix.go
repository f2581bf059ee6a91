package main

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// expand writes out flags of a command that are given by an unambiguous
// prefix, as getopt_long takes them and so start commands may have them. What
// it does not know it leaves to the parser.
func expand(args []string, command *kong.Node) ([]string, error) {
	at := commandAt(args)
	if at < 0 || args[at] != command.Name {
		return args, nil
	}
	flags := flagsByName(command)
	args = slices.Clone(args)
	for i := at + 1; i < len(args) && args[i] != "--"; i++ {
		given, isFlag := strings.CutPrefix(args[i], "--")
		if !isFlag {
			continue
		}
		given, value, assigned := strings.Cut(given, "=")
		name, err := complete(given, flags)
		if err != nil {
			return nil, err
		}
		args[i] = "--" + name
		switch f := flags[name]; {
		case assigned:
			args[i] += "=" + value
		case f != nil && !f.IsBool():
			i++ // the next argument is the value, whatever it looks like
		}
	}
	return args, nil
}

// commandAt is where the command stands: the first argument that is neither a
// flag nor the value of the one flag that all commands have.
func commandAt(args []string) int {
	for i := 0; i < len(args); i++ {
		if args[i] == "--"+config.FileFlag {
			i++
			continue
		}
		if !strings.HasPrefix(args[i], "-") {
			return i
		}
	}
	return -1
}

func flagsByName(command *kong.Node) map[string]*kong.Flag {
	flags := make(map[string]*kong.Flag)
	for _, group := range command.AllFlags(false) {
		for _, f := range group {
			flags[f.Name] = f
			for _, alias := range f.Aliases {
				flags[alias] = f
			}
		}
	}
	return flags
}

// complete returns the name that a prefix stands for, or the prefix itself if
// it stands for none.
func complete(given string, flags map[string]*kong.Flag) (string, error) {
	if flags[given] != nil {
		return given, nil
	}
	var names []string
	meant := make(map[*kong.Flag]bool)
	for name, f := range flags {
		if given != "" && strings.HasPrefix(name, given) {
			names, meant[f] = append(names, name), true
		}
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return given, nil
	case len(meant) > 1:
		return "", errs.New(errs.ConfigInvalid, "--%s may be any of --%s: write more of the name", given, strings.Join(names, ", --"))
	}
	return names[0], nil
}
