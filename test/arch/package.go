package arch

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// longest is where a file stops being read as one thing; half of it is the aim.
const longest = 500

// checkPackage holds the rules about a package's name, size and documentation.
func checkPackage(p *pkg) []Violation {
	var found []Violation
	if vague := []string{"base", "common", "helper", "helpers", "manager", "misc", "shared", "types", "util", "utils"}; slices.Contains(vague, path.Base(p.dir)) {
		found = append(found, Violation{
			Where: p.dir, Rule: "packages have meaning", What: "a package named " + path.Base(p.dir),
			Reason: "a name that fits everything collects everything; name what it does",
		})
	}
	described, code := false, false
	for _, f := range p.files {
		if f.test {
			continue
		}
		code = true
		described = described || f.syntax.Doc != nil
		if f.lines > longest && !f.generated {
			found = append(found, Violation{
				Where: f.path, Rule: "files stay short", What: fmt.Sprintf("%d lines", f.lines),
				Reason: fmt.Sprintf("beyond %d lines a file holds several things; give each its own", longest),
			})
		}
	}
	if code && !described && !p.generatedOnly() {
		found = append(found, Violation{
			Where: p.dir, Rule: "packages say what they are for", What: "no package comment",
			Reason: "purpose, what it owns and what it refuses to do stand before the package clause of one file",
		})
	}
	return found
}

func (p *pkg) generatedOnly() bool {
	return !slices.ContainsFunc(p.files, func(f *file) bool { return !f.generated && !f.test })
}

// checkPurity looks into the packages that must be plain state machines for
// what an import does not show: reading the clock and starting goroutines.
func checkPurity(p *pkg) []Violation {
	if p.dir != "services/scheduler/core" && !strings.HasPrefix(p.dir+"/", "services/registry/core/") {
		return nil
	}
	var found []Violation
	for _, f := range p.files {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			if what := impure(node); what != "" {
				found = append(found, Violation{
					Where: f.place(node), Rule: "cores are pure", What: what,
					Reason: "the same events and times must give the same actions, in production, in replay and in the simulator",
				})
			}
			return true
		})
	}
	return found
}

func impure(node ast.Node) string {
	switch n := node.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.SendStmt:
		return "sends on a channel"
	case *ast.SelectStmt:
		return "selects"
	case *ast.SelectorExpr:
		from, isName := n.X.(*ast.Ident)
		if !isName {
			return ""
		}
		called := from.Name + "." + n.Sel.Name
		clock := []string{"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick", "time.Sleep", "mono.Now", "mono.Since"}
		if slices.Contains(clock, called) {
			return "uses " + called
		}
	}
	return ""
}
