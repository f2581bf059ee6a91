package config

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Misspelling is an unknown variable, and the setting that was probably meant.
type Misspelling struct{ Variable, Meant string }

// Lookup finds variables in an environment as [os.Environ] returns it.
func Lookup(environ []string) func(string) (string, bool) {
	values := make(map[string]string, len(environ))
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	return func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	}
}

// Misspelled returns the variables of an environment that resemble one of the application's
// settings, sorted. It ignores other variables with the same prefix: other programs have
// theirs, and Kubernetes sets some that are named after services. So a variable must be more
// similar to a setting than a key of the file.
func Misspelled(environ []string, app *kong.Application) []Misspelling {
	known := map[string]bool{EnvName(FileFlag): true}
	for name := range flagNames(app.Node) {
		known[EnvName(name)] = true
	}
	var list []Misspelling
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || value == "" || known[name] {
			continue
		}
		if meant := nearest(name, known, max(1, len(rest)/4)); meant != "" {
			list = append(list, Misspelling{name, meant})
		}
	}
	slices.SortFunc(list, func(a, b Misspelling) int { return strings.Compare(a.Variable, b.Variable) })
	return list
}
