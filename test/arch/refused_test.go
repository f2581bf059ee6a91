package arch

import (
	"strings"
	"testing"
	"testing/fstest"
)

// checkWith runs every rule over one package and a list of refused words.
func checkWith(t *testing.T, list, dir, code string) []Violation {
	t.Helper()
	found, err := Check(fstest.MapFS{
		listOfRefused:    &fstest.MapFile{Data: []byte(list)},
		dir + "/a.go":    &fstest.MapFile{Data: []byte("// Package a is a fixture.\npackage a\n" + code)},
		dir + "/doc.txt": &fstest.MapFile{Data: []byte("Lead is a word here.\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRefusedWordsAreFoundWhereTheyAreDeclared(t *testing.T) {
	const list = "# words\n\nlibs/bus\tLead\tBecomeLeader\nlibs/state\tTenure\tSession\n"
	tests := []struct {
		name, dir, code string
		refused         bool
	}{
		{"a type", "libs/bus", "type Lead int", true},
		{"a type of several", "libs/bus", "type (\n\tOther int\n\tLead = Other\n)", true},
		{"a function", "libs/bus", "func Lead() {}", true},
		{"a method", "libs/bus", "type T int\n\nfunc (T) Lead() {}", true},
		{"a field", "libs/bus", "type T struct{ A, Lead int }", true},
		{"a field inside a field", "libs/bus", "type T struct{ A struct{ Lead int } }", true},
		{"an interface's method", "libs/bus", "type T interface{ Lead() }", true},
		{"a constant", "libs/bus", "const Other, Lead = 1, 2", true},
		{"a variable", "libs/bus", "var Lead = 1", true},
		{"a field of a variable's type", "libs/bus", "var table = []struct{ Lead int }{{1}}", true},
		{"a word of the other line", "libs/state", "type Tenure int", true},

		{"a longer word", "libs/bus", "type Leader int", false},
		{"another case", "libs/bus", "type lead int", false},
		{"a directory below", "libs/bus/inner", "type Lead int", false},
		{"another directory", "libs/state", "type Lead int", false},
		{"a use", "libs/bus", "import \"libs/other\"\n\nvar x = other.Lead", false},
		{"an embedded type", "libs/bus", "import \"libs/other\"\n\ntype T struct{ other.Lead }", false},
		{"a parameter", "libs/bus", "func f(Lead int) {}", false},
		{"a local variable", "libs/bus", "func f() { var Lead int; _ = Lead }", false},
		{"a local variable of a function's value", "libs/bus", "var f = func() { var Lead int; _ = Lead }", false},
		{"a comment", "libs/bus", "// Lead is a word.\ntype T int", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := checkWith(t, list, tt.dir, tt.code)
			switch {
			case !tt.refused && len(found) > 0:
				t.Errorf("refused: %v", found)
			case tt.refused && (len(found) != 1 || found[0].Rule != "words are the field's"):
				t.Errorf("found %v, want one declaration refused", found)
			case tt.refused && !strings.Contains(found[0].What, "use BecomeLeader") && !strings.Contains(found[0].What, "use Session"):
				t.Errorf("%v does not say what to write instead", found[0])
			}
		})
	}
}

func TestRefusedWordsAreFoundInTests(t *testing.T) {
	found, err := Check(fstest.MapFS{
		listOfRefused:        &fstest.MapFile{Data: []byte("libs/bus\tLead\tBecomeLeader\n")},
		"libs/bus/a.go":      &fstest.MapFile{Data: []byte("// Package bus is a fixture.\npackage bus\n")},
		"libs/bus/a_test.go": &fstest.MapFile{Data: []byte("package bus_test\n\ntype Lead int\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Where != "libs/bus/a_test.go:3" {
		t.Errorf("found %v, want the declaration in the test", found)
	}
}

func TestALineThatRefusesNothingIsRefused(t *testing.T) {
	tests := []struct{ name, line string }{
		{"spaces for tabs", "libs/bus Lead BecomeLeader"},
		{"no replacement", "libs/bus\tLead"},
		{"an empty replacement", "libs/bus\tLead\t"},
		{"a fourth field", "libs/bus\tLead\tBecomeLeader\twhy"},
		{"a space at the end", "libs/bus\tLead \tBecomeLeader"},
		{"the line ending of another system", "libs/bus\tLead\tBecomeLeader\r"},
		{"a slash at the end", "libs/bus/\tLead\tBecomeLeader"},
		{"a path from here", "./libs/bus\tLead\tBecomeLeader"},
		{"a path outside", "../libs/bus\tLead\tBecomeLeader"},
		{"a path of the machine", "/libs/bus\tLead\tBecomeLeader"},
		{"a package's name before the identifier", "libs/bus\tbus.Lead\tBecomeLeader"},
		{"a sentence", "libs/bus\tto lead\tBecomeLeader"},
		{"its own replacement", "libs/bus\tLead\tLead"},
		{"a line that is there", "libs/bus\tResign\tStop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found := checkWith(t, "libs/bus\tResign\tStepDown\n"+tt.line+"\n", "libs/bus", "type Lead int")
			if len(found) != 1 || found[0].Rule != "refused words are well formed" || found[0].Where != listOfRefused+":2" {
				t.Errorf("found %v, want the second line alone", found)
			}
		})
	}
}
