// Package guide parses the tables of docs/guides/from-triton.md, so that tests
// can compare them with the code.
package guide

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Row is what a table says of one thing: a row for each name of its first cell.
type Row struct {
	// Name is without quotes, and State one of same, better, different and absent.
	Name, State string
}

// Rows returns the rows of the table under a heading of the page at path. A name with
// optional parts in brackets stands for every form.
func Rows(t testing.TB, path, heading string) []Row {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n### "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", path, heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	var rows []Row
	for line := range strings.Lines(section) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 2 {
			continue
		}
		state := strings.TrimSpace(cells[1])
		if !slices.Contains([]string{"same", "better", "different", "absent"}, state) {
			t.Errorf("%s: %q is no state", path, state)
		}
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			for _, form := range forms(name[1]) {
				rows = append(rows, Row{form, state})
			}
		}
	}
	if len(rows) == 0 {
		t.Errorf("%s: the section %q has no rows", path, heading)
	}
	return rows
}

// forms are a name with and without its first optional part, and so on.
func forms(name string) []string {
	before, rest, found := strings.Cut(name, "[")
	if !found {
		return []string{name}
	}
	part, after, _ := strings.Cut(rest, "]")
	return slices.Concat(forms(before+after), forms(before+part+after))
}
