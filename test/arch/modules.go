package arch

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// checkModules holds the rules about go.mod files and the workspace.
func checkModules(t *tree) []Violation {
	if t.work == nil {
		return nil
	}
	var found []Violation
	report := func(where, what string) {
		found = append(found, Violation{
			Where: where, Rule: "modules stand alone", What: what,
			Reason: "each module builds with GOWORK=off and is found by its directory, so an image needs only what it ships",
		})
	}
	used := t.workspace(report)
	for dir, content := range t.modules {
		name := path.Join(dir, "go.mod")
		parsed, err := modfile.Parse(name, content, nil)
		if err != nil {
			report(name, err.Error())
			continue
		}
		if !slices.Contains(used, dir) {
			report("go.work", "does not use "+dir)
		}
		for _, what := range problems(dir, parsed) {
			report(name, what)
		}
	}
	return found
}

// workspace returns the directories that go.work uses.
func (t *tree) workspace(report func(where, what string)) []string {
	parsed, err := modfile.ParseWork("go.work", t.work, nil)
	if err != nil {
		report("go.work", err.Error())
		return nil
	}
	var used []string
	for _, use := range parsed.Use {
		used = append(used, path.Clean(use.Path))
	}
	return used
}

func problems(dir string, m *modfile.File) []string {
	var found []string
	if want := path.Join(Prefix, dir); m.Module == nil || m.Module.Mod.Path != want {
		found = append(found, "module path is not "+want)
	}
	if m.Go == nil || !strings.HasPrefix(m.Go.Version+".", "1.26.") {
		found = append(found, "go version is not 1.26")
	}
	replaced := map[string]string{}
	for _, r := range m.Replace {
		replaced[r.Old.Path] = r.New.Path
	}
	for _, r := range m.Require {
		sibling, inside := strings.CutPrefix(r.Mod.Path, Prefix+"/")
		if !inside {
			continue
		}
		if target := path.Join(dir, replaced[r.Mod.Path]); replaced[r.Mod.Path] == "" || target != sibling {
			found = append(found, fmt.Sprintf("no replace line leads from %s to %s", r.Mod.Path, sibling))
		}
	}
	return found
}
