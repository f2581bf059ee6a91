package modelconfig

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth is the deepest nesting that the walker follows; the format itself
// needs six levels.
const maxDepth = 64

// walker reads protobuf text beside a message's descriptor, to say where each
// field stands and which names the message does not have. The stock parser
// decides what is valid; it stops at its first error and knows no names to
// suggest, which is why this exists. The walker gives up silently where it
// cannot follow.
type walker struct {
	lex      lexer
	places   map[string]int // path to offset of the field's name
	problems []misnomer
}

// misnomer is a name that the format does not have at its place.
type misnomer struct {
	offset int
	path   string // of the message or enum field that does not have it
	name   string
	known  []string
	value  bool // an enum value rather than a field
}

func walk(text string, desc protoreflect.MessageDescriptor) *walker {
	w := &walker{lex: lexer{text: text}, places: make(map[string]int)}
	w.message("", desc, "", 0)
	return w
}

// message reads fields until close, or the end where close is empty. desc is
// nil inside of an unknown field.
func (w *walker) message(path string, desc protoreflect.MessageDescriptor, end string, depth int) bool {
	counts := make(map[string]int)
	for {
		t := w.lex.next()
		switch {
		case t.kind == tokenEnd:
			return end == ""
		case t.kind == tokenPunct && t.text == end:
			return true
		case t.kind == tokenPunct && (t.text == "," || t.text == ";"):
			continue
		case t.kind != tokenWord || depth > maxDepth:
			return false
		}
		if !w.field(path, desc, t, counts, depth) {
			return false
		}
	}
}

func (w *walker) field(path string, desc protoreflect.MessageDescriptor, name token, counts map[string]int, depth int) bool {
	fd := w.resolve(path, desc, name)
	at := join(path, name.text)
	if fd != nil {
		w.place(at, name.offset)
	}
	if t := w.lex.peek(); t.kind == tokenPunct && t.text == ":" {
		w.lex.next()
	}
	if t := w.lex.peek(); t.kind != tokenPunct || t.text != "[" {
		return w.value(w.item(at, fd, counts), fd, name.offset, depth)
	}
	w.lex.next()
	return w.list(at, fd, counts, depth)
}

func (w *walker) list(at string, fd protoreflect.FieldDescriptor, counts map[string]int, depth int) bool {
	for {
		t := w.lex.peek()
		switch {
		case t.kind == tokenEnd:
			return false
		case t.kind == tokenPunct && t.text == "]":
			w.lex.next()
			return true
		case t.kind == tokenPunct && t.text == ",":
			w.lex.next()
			continue
		case t.kind == tokenPunct && t.text != "{" && t.text != "<":
			return false
		}
		if !w.value(w.item(at, fd, counts), fd, t.offset, depth) {
			return false
		}
	}
}

// value reads one value whose place is offset.
func (w *walker) value(path string, fd protoreflect.FieldDescriptor, offset int, depth int) bool {
	w.place(path, offset)
	t := w.lex.next()
	switch {
	case t.kind == tokenPunct && (t.text == "{" || t.text == "<"):
		var inner protoreflect.MessageDescriptor
		if fd != nil {
			inner = fd.Message()
		}
		return w.message(path, inner, closing(t.text), depth+1)
	case t.kind == tokenQuoted:
		w.key(path, fd, t.text, offset)
		for w.lex.peek().kind == tokenQuoted { // adjacent strings are one
			w.lex.next()
		}
		return true
	case t.kind == tokenWord:
		w.key(path, fd, t.text, offset)
		w.enum(path, fd, t)
		return true
	}
	return false
}

func (w *walker) resolve(path string, desc protoreflect.MessageDescriptor, name token) protoreflect.FieldDescriptor {
	if desc == nil {
		return nil
	}
	fd := desc.Fields().ByTextName(name.text)
	if fd == nil {
		w.misnomer(misnomer{offset: name.offset, path: path, name: name.text, known: fieldNames(desc)})
	}
	return fd
}

func (w *walker) enum(path string, fd protoreflect.FieldDescriptor, t token) {
	if fd == nil || fd.Kind() != protoreflect.EnumKind {
		return
	}
	if _, err := strconv.ParseInt(t.text, 0, 32); err == nil {
		return
	}
	if fd.Enum().Values().ByName(protoreflect.Name(t.text)) == nil {
		w.misnomer(misnomer{offset: t.offset, path: path, name: t.text, known: valueNames(fd.Enum()), value: true})
	}
}

func (w *walker) misnomer(m misnomer) {
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, m)
	}
}

// key notes the place of a map's entry by its key.
func (w *walker) key(path string, fd protoreflect.FieldDescriptor, key string, offset int) {
	if fd == nil || !fd.ContainingMessage().IsMapEntry() || fd.Number() != 1 {
		return
	}
	w.place(entry(path[:strings.LastIndexByte(path, '[')], key), offset)
}

// item gives the path of a field's next value: indexed where it repeats.
func (w *walker) item(at string, fd protoreflect.FieldDescriptor, counts map[string]int) string {
	if fd == nil || fd.Cardinality() != protoreflect.Repeated {
		return at
	}
	i := counts[at]
	counts[at]++
	return index(at, i)
}

// place notes the first place of a path.
func (w *walker) place(path string, offset int) {
	if _, ok := w.places[path]; !ok {
		w.places[path] = offset
	}
}

func closing(open string) string {
	if open == "<" {
		return ">"
	}
	return "}"
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// entry is the path of a map's entry, such as metric_tags["team"].
func entry(path, key string) string { return path + "[" + strconv.Quote(key) + "]" }

func fieldNames(desc protoreflect.MessageDescriptor) []string {
	names := make([]string, desc.Fields().Len())
	for i := range names {
		names[i] = desc.Fields().Get(i).TextName()
	}
	return names
}

func valueNames(desc protoreflect.EnumDescriptor) []string {
	names := make([]string, desc.Values().Len())
	for i := range names {
		names[i] = string(desc.Values().Get(i).Name())
	}
	return names
}
