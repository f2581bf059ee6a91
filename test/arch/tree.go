package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// tree is what the rules look at.
type tree struct {
	packages []*pkg
	// modules maps a module's directory to the text of its go.mod.
	modules map[string][]byte
	// work is the text of go.work.
	work []byte
	// texts holds every text file that people write, by path.
	texts map[string][]byte
}

// pkg is one directory with Go files.
type pkg struct {
	// dir is its path in the repository, which is also its import path after
	// Prefix.
	dir   string
	files []*file
}

// file is one parsed Go file.
type file struct {
	path      string
	test      bool
	generated bool
	lines     int
	imports   []imported
	syntax    *ast.File
	positions *token.FileSet
}

// imported is one import, with its place. The path of a package of this
// repository is the directory alone.
type imported struct {
	path  string
	local bool
	where string
}

// load reads a repository. It leaves out what is built, fetched, or kept only
// as test data.
func load(root fs.FS) (*tree, error) {
	t := &tree{modules: map[string][]byte{}, texts: map[string][]byte{}}
	byDir := map[string]*pkg{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && outside(name):
			return fs.SkipDir
		case entry.IsDir() || !isText(name):
			return nil
		}
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		return t.add(byDir, name, content)
	})
	if err != nil {
		return nil, fmt.Errorf("read the repository: %w", err)
	}
	slices.SortFunc(t.packages, func(a, b *pkg) int { return strings.Compare(a.dir, b.dir) })
	return t, nil
}

func (t *tree) add(byDir map[string]*pkg, name string, content []byte) error {
	t.texts[name] = content
	switch {
	case name == "go.work":
		t.work = content
	case path.Base(name) == "go.mod":
		t.modules[path.Dir(name)] = content
	case path.Ext(name) == ".go":
		parsed, err := parse(name, content)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if byDir[dir] == nil {
			byDir[dir] = &pkg{dir: dir}
			t.packages = append(t.packages, byDir[dir])
		}
		byDir[dir].files = append(byDir[dir].files, parsed)
	}
	return nil
}

func parse(name string, content []byte) (*file, error) {
	positions := token.NewFileSet()
	syntax, err := parser.ParseFile(positions, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &file{
		path:      name,
		test:      strings.HasSuffix(name, "_test.go"),
		generated: ast.IsGenerated(syntax),
		lines:     strings.Count(string(content), "\n"),
		syntax:    syntax,
		positions: positions,
	}
	for _, spec := range syntax.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: import %s: %w", name, spec.Path.Value, err)
		}
		local, inside := strings.CutPrefix(target, Prefix+"/")
		if inside {
			target = local
		}
		f.imports = append(f.imports, imported{path: target, local: inside, where: f.place(spec)})
	}
	return f, nil
}

// place is the path and line of a node.
func (f *file) place(node ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.positions.Position(node.Pos()).Line)
}

func outside(dir string) bool {
	switch base := path.Base(dir); {
	case dir == ".":
		return false
	case base == ".ci", base == ".github":
		return false
	case strings.HasPrefix(base, "."), base == "testdata", base == "node_modules":
		return true
	default:
		return dir == "bin" || dir == "build" || dir == "data"
	}
}

func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".md", ".mod", ".work", ".py", ".sh", ".txt", ".in", ".yml", ".yaml", ".toml", ".proto", ".pbtxt", ".tsv", ".h", ".c":
		return true
	default:
		base := path.Base(name)
		return base == "Makefile" || base == "NOTICE" || base == "Dockerfile" || strings.HasPrefix(name, ".ci/")
	}
}
