package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// levels lists the libraries from the bottom up. One may import those of its
// own level and of the levels before it.
func levels() [][]string {
	return [][]string{
		{"diagnostics", "errs", "infer", "invariant", "modelfiles", "mono", "onnxheader", "protoscan", "resources", "ring", "splice", "tensor"},
		{"backends", "config", "gpu", "lifecycle", "modelconfig", "obs", "procs", "quantile", "recording", "shm"},
		{"blob", "bus", "client", "control", "identity", "plane", "policy", "process", "serve", "state"},
		{"testkit"},
	}
}

func levelOf(dir string) (level int, lib string) {
	rest, ok := strings.CutPrefix(dir, "libs/")
	if !ok {
		return -1, ""
	}
	lib, _, _ = strings.Cut(rest, "/")
	return slices.IndexFunc(levels(), func(level []string) bool { return slices.Contains(level, lib) }), lib
}

// checkPlace refuses a library that has no level yet: its place is a decision.
func checkPlace(p *pkg) []Violation {
	level, lib := levelOf(p.dir)
	if lib == "" || level >= 0 {
		return nil
	}
	return []Violation{{
		Where: p.dir, Rule: "libs have levels", What: "libs/" + lib + " is in no level",
		Reason: "a library's place says what it may use; add it to levels in test/arch",
	}}
}

func checkLevel(p *pkg, f *file, i imported, what string) []Violation {
	from, _ := levelOf(p.dir)
	to, lib := levelOf(i.path)
	if from < 0 || to <= from || (f.test && lib == "testkit") {
		return nil
	}
	return []Violation{{
		Where: i.where, Rule: "libs have levels", What: what,
		Reason: fmt.Sprintf("%s stands above %s; a library uses those of its level and below, so none needs the world", path.Base(i.path), path.Base(p.dir)),
	}}
}
