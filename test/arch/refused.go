package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"strings"
)

// listOfRefused names the identifiers that the field has other words for.
const listOfRefused = "test/arch/refused.tsv"

// refused is one line of the list.
type refused struct {
	dir, name string
	// use is what the line says to write instead.
	use string
}

// checkRefused holds the list's own form, and the declarations against it.
func checkRefused(t *tree) []Violation {
	list, found := parseRefused(string(t.texts[listOfRefused]))
	for _, p := range t.packages {
		if words := list[p.dir]; words != nil {
			found = append(found, checkDeclared(p, words)...)
		}
	}
	return found
}

// parseRefused reads the list into words by directory and name. A line that
// cannot refuse anything is a violation.
func parseRefused(text string) (map[string]map[string]refused, []Violation) {
	list := map[string]map[string]refused{}
	var found []Violation
	for number, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, wrong := parseWord(line)
		if wrong == "" && list[word.dir][word.name] != (refused{}) {
			wrong = word.dir + " has " + word.name + " already"
		}
		if wrong != "" {
			found = append(found, Violation{
				Where: fmt.Sprintf("%s:%d", listOfRefused, number+1), Rule: "refused words are well formed", What: wrong,
				Reason: "a line that names no identifier of one directory refuses nothing; write directory, identifier and replacement with one tab between",
			})
			continue
		}
		if list[word.dir] == nil {
			list[word.dir] = map[string]refused{}
		}
		list[word.dir][word.name] = word
	}
	return list, found
}

// parseWord reads one line, or says what is wrong with it.
func parseWord(line string) (word refused, wrong string) {
	fields := strings.Split(line, "\t")
	if len(fields) != 3 {
		return refused{}, fmt.Sprintf("%d fields, not 3", len(fields))
	}
	for _, field := range fields {
		if field == "" || strings.TrimSpace(field) != field {
			return refused{}, fmt.Sprintf("%q is empty or has space around it", field)
		}
	}
	word = refused{dir: fields[0], name: fields[1], use: fields[2]}
	switch {
	case path.Clean(word.dir) != word.dir || path.IsAbs(word.dir) || strings.HasPrefix(word.dir, ".."):
		return refused{}, fmt.Sprintf("%q is not the path of a directory in the repository", word.dir)
	case !token.IsIdentifier(word.name):
		return refused{}, fmt.Sprintf("%q is not an identifier", word.name)
	case word.use == word.name:
		return refused{}, word.name + " is its own replacement"
	}
	return word, ""
}

// checkDeclared looks for declarations of refused words: types, functions,
// constants, variables, and the fields and methods of types. What a function
// declares for itself is its own affair.
func checkDeclared(p *pkg, words map[string]refused) []Violation {
	var found []Violation
	for _, f := range p.files {
		for _, name := range declared(f.syntax) {
			word, ok := words[name.Name]
			if !ok {
				continue
			}
			found = append(found, Violation{
				Where: f.place(name), Rule: "words are the field's", What: "declares " + word.name + "; use " + word.use,
				Reason: "who looks for the concept looks for the word that the field has for it",
			})
		}
	}
	return found
}

// declared lists the names that a file declares for its package.
func declared(file *ast.File) []*ast.Ident {
	var names []*ast.Ident
	for _, decl := range file.Decls {
		if function, ok := decl.(*ast.FuncDecl); ok {
			names = append(names, function.Name)
			continue
		}
		ast.Inspect(decl, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncLit:
				return false
			case *ast.TypeSpec:
				names = append(names, n.Name)
			case *ast.ValueSpec:
				names = append(names, n.Names...)
			case *ast.StructType:
				names = append(names, members(n.Fields)...)
			case *ast.InterfaceType:
				names = append(names, members(n.Methods)...)
			}
			return true
		})
	}
	return names
}

// members lists the names of fields or methods. One that is embedded has the
// name of its type, which is declared elsewhere.
func members(fields *ast.FieldList) []*ast.Ident {
	var names []*ast.Ident
	for _, field := range fields.List {
		names = append(names, field.Names...)
	}
	return names
}
