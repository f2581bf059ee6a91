package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// pageOfPackages is the document that says what each package is for.
const pageOfPackages = "docs/architecture.md"

// checkMap compares the table of packages with the packages, both ways. Where
// there is no page, as in most fixtures, there is nothing to compare.
func checkMap(t *tree) []Violation {
	page, ok := t.texts[pageOfPackages]
	if !ok {
		return nil
	}
	var found []Violation
	report := func(where, what string) {
		found = append(found, Violation{
			Where: where, Rule: "the map shows the land", What: what,
			Reason: "a reader finds the way by the table of packages in " + pageOfPackages,
		})
	}
	mapped := map[string]bool{}
	for number, line := range strings.Split(string(page), "\n") {
		if dir, ok := mappedPackage(line); ok {
			mapped[dir] = true
			if !t.holds(dir) {
				report(fmt.Sprintf("%s:%d", pageOfPackages, number+1), "there is no package "+dir)
			}
		}
	}
	for _, p := range t.packages {
		if !mapped[p.dir] && !unmapped(p.dir) {
			report(p.dir, "is not in the table of packages")
		}
	}
	return found
}

// mappedPackage reads a line of the table: | `directory` | purpose |.
func mappedPackage(line string) (dir string, ok bool) {
	cell, ok := strings.CutPrefix(line, "| `")
	if !ok {
		return "", false
	}
	dir, _, ok = strings.Cut(cell, "` |")
	return dir, ok && strings.Contains(dir, "/")
}

func (t *tree) holds(dir string) bool {
	return slices.ContainsFunc(t.packages, func(p *pkg) bool { return p.dir == dir })
}

// unmapped are the packages that the map need not show: the services
// themselves, which the page begins with, programs, tests, and what belongs to
// one library alone.
func unmapped(dir string) bool {
	return matchAny([]string{"proto", "python", "proto/internal/...", "libs/*/internal/...", "services/*", "services/*/cmd/*", "cmd/...", "test/..."}, dir)
}

// checkTexts holds the rules about every text that people write.
func checkTexts(t *tree) []Violation {
	var found []Violation
	for name, content := range t.texts {
		if strings.HasPrefix(name, "test/arch/") || path.Base(name) == "go.sum" {
			continue // this package names what it forbids
		}
		for number, line := range strings.Split(string(content), "\n") {
			for _, b := range textBans() {
				if b.hits(line) {
					found = append(found, Violation{
						Where: fmt.Sprintf("%s:%d", name, number+1), Rule: b.name,
						What: strings.TrimSpace(line), Reason: b.reason,
					})
				}
			}
		}
	}
	return found
}

// textBan forbids a line that holds one of the words.
type textBan struct {
	name   string
	words  []string
	reason string
}

func (b textBan) hits(line string) bool {
	return slices.ContainsFunc(b.words, func(word string) bool { return strings.Contains(line, word) })
}

func textBans() []textBan {
	return []textBan{
		{
			name: "no machine paths", words: []string{"/root/", "/home/", "/Users/", "/work/"},
			reason: "a path of one machine works on that one alone; use a path in the repository, a flag or a temporary directory",
		},
		{
			name: "no registry hosts", words: []string{"proxy.golang.org", "sum.golang.org", "pypi.org", "files.pythonhosted.org", "registry.npmjs.org"},
			reason: "which mirror serves packages is the machine's setting; versions and hashes are pinned here",
		},
	}
}
