package config

import (
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Locate adds the origin of a setting's value to an error that names the setting as --setting:
// the variable, or the file with its line. Values in args need no origin.
func (s *Settings) Locate(err error, args []string) error {
	if err == nil || (s.path != "" && strings.Contains(err.Error(), s.path+":")) {
		return err
	}
	for _, name := range flagsIn(err.Error()) {
		if given(args, name) {
			return err
		}
		if source := s.Source(name); source != byDefault {
			return errs.Wrap(errs.ConfigInvalid, err, "%s: %v", source, err)
		}
	}
	return err
}

// flagsIn lists the flags that a message names, in their order.
func flagsIn(message string) []string {
	var names []string
	for {
		_, rest, found := strings.Cut(message, "--")
		if !found {
			return names
		}
		name := rest
		if end := strings.IndexFunc(rest, notOfAName); end >= 0 {
			name = rest[:end]
		}
		if name != "" {
			names = append(names, name)
		}
		message = rest[len(name):]
	}
}

func notOfAName(r rune) bool { return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }

func given(args []string, name string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if flag, _, _ := strings.Cut(arg, "="); flag == "--"+name {
			return true
		}
	}
	return false
}
