package arch

import (
	"fmt"
	"strings"
)

// fenced is the one file outside the fenced packages that may use unsafe: it
// views numbers as bytes and back.
const fenced = "libs/tensor/cast.go"

func checkImports(p *pkg, rules []ban) []Violation {
	var found []Violation
	for _, f := range p.files {
		for _, i := range f.imports {
			found = append(found, checkImport(p, f, i, rules)...)
		}
	}
	return found
}

func checkImport(p *pkg, f *file, i imported, rules []ban) []Violation {
	var found []Violation
	what := fmt.Sprintf("%s imports %s", p.dir, i.path)
	for _, b := range rules {
		if b.hits(p, f, i) {
			found = append(found, Violation{Where: i.where, Rule: b.Name, What: what, Reason: b.Reason})
		}
	}
	if !i.local {
		return found
	}
	if from, to := service(p.dir), service(i.path); from != "" && to != "" && from != to {
		found = append(found, Violation{
			Where: i.where, Rule: "no service imports another", What: what,
			Reason: "services meet at the interfaces that each declares, so that one process and the cluster run the same code",
		})
	}
	return append(found, checkLevel(p, f, i, what)...)
}

func (b ban) hits(p *pkg, f *file, i imported) bool {
	switch {
	case f.test && !b.Tests, f.generated && i.path == "unsafe", f.path == fenced && i.path == "unsafe":
		return false
	case !matchAny(b.From, p.dir) || matchAny(b.Except, p.dir):
		return false
	default:
		return matchAny(b.To, i.path)
	}
}

// service is the name of the service that a directory belongs to, or empty.
func service(dir string) string {
	rest, ok := strings.CutPrefix(dir, "services/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}
