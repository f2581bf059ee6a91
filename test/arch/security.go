package arch

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"strings"
)

// pageOfBounds is the document whose tables name the test of each row.
const pageOfBounds = "SECURITY.md"

// checkSecurity checks that each row of the tables of bounds names a test that exists.
func checkSecurity(t *tree) []Violation {
	var found []Violation
	named := regexp.MustCompile("`([a-z0-9]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")
	tested := false // the table has a column of tests
	for number, line := range strings.Split(string(t.texts[pageOfBounds]), "\n") {
		row, ok := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !ok {
			tested = false
			continue
		}
		cells := strings.Split(strings.TrimSuffix(row, "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		switch {
		case last == "test":
			tested = true
			continue
		case !tested || strings.Trim(last, "-") == "":
			continue
		}
		report := func(what string) {
			found = append(found, Violation{
				Where: fmt.Sprintf("%s:%d", pageOfBounds, number+1), Rule: "bounds are attacked", What: what,
				Reason: "a bound that no test attacks may be none",
			})
		}
		names := named.FindAllStringSubmatch(last, -1)
		if len(names) == 0 {
			report("the row names no test, as `package.TestName`")
		}
		for _, name := range names {
			if !t.hasTest(name[1], name[2]) {
				report("there is no test " + name[1] + "." + name[2])
			}
		}
	}
	return found
}

// hasTest reports whether a package of this name, the last part of its directory, has the test.
func (t *tree) hasTest(of, name string) bool {
	for _, p := range t.packages {
		if path.Base(p.dir) != of {
			continue
		}
		for _, f := range p.files {
			for _, d := range f.syntax.Decls {
				if function, ok := d.(*ast.FuncDecl); ok && f.test && function.Recv == nil && function.Name.Name == name {
					return true
				}
			}
		}
	}
	return false
}
