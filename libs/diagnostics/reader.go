package diagnostics

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxDepth is the deepest nesting that the reader follows; the format itself
// needs six levels.
const maxDepth = 64

// Text is a protobuf text that was read with a message's descriptor.
type Text struct {
	// Findings are the errors in the order of the text, up to [MaxFindings].
	Findings []Finding

	text    string
	places  map[string]int // path to offset of the field's name
	edits   []edit
	dropped []string // paths of fields that the edits leave out
}

// MaxFindings is the most findings of a text. Nobody reads more at once, and a
// hostile text could hold one for each word.
const MaxFindings = 100

// Read reads a text as far as it can be followed.
func Read(text string, desc protoreflect.MessageDescriptor, dictionary Dictionary) *Text {
	r := &reader{
		Text:       Text{text: text, places: make(map[string]int)},
		lex:        lexer{text: text},
		dictionary: dictionary,
	}
	r.message("", desc, "", 0)
	return &r.Text
}

// Position returns line and column, from 1, of a field, or of the innermost enclosing field in
// the text. It returns false if there is none.
func (t *Text) Position(field string) (line, column int, ok bool) {
	for ; field != ""; field = around(field) {
		if offset, found := t.places[field]; found {
			line, column = position(t.text, offset)
			return line, column, true
		}
	}
	return 0, 0, false
}

// around is the path around a field: input[0] of input[0].dims, input of
// input[0], nothing of input.
func around(field string) string {
	return field[:max(0, strings.LastIndexAny(field, ".["))]
}

// Dropped reports whether a field, or one around it, is in the text and left out
// by [Text.Repaired].
func (t *Text) Dropped(field string) bool {
	return slices.ContainsFunc(t.dropped, func(path string) bool {
		rest, within := strings.CutPrefix(field, path)
		return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// AnyDropped reports whether [Text.Dropped] holds for any field.
func (t *Text) AnyDropped() bool { return len(t.dropped) > 0 }

// reader reads protobuf text beside a message's descriptor. After each finding it
// goes on, and keeps how the text reads without it. It gives up silently where it
// cannot follow.
type reader struct {
	Text
	lex        lexer
	dictionary Dictionary
}

// seen is what a message has so far.
type seen struct {
	counts map[string]int    // values of a repeated field, by path
	given  map[string]bool   // fields that do not repeat, by path
	oneofs map[string]string // the member that is given
}

// message reads fields until close, or the end where close is empty. desc is
// nil inside of an unknown field.
func (r *reader) message(path string, desc protoreflect.MessageDescriptor, end string, depth int) bool {
	s := &seen{counts: make(map[string]int), given: make(map[string]bool), oneofs: make(map[string]string)}
	for {
		t := r.lex.next()
		switch {
		case t.kind == tokenEnd:
			return end == ""
		case t.is(end):
			return true
		case t.is(",") || t.is(";"):
			continue
		case t.is("/") && r.comment(t):
			continue
		case t.kind != tokenWord || depth > maxDepth:
			return false
		}
		if !r.field(path, desc, t, s, depth) {
			return false
		}
	}
}

// field reads a field after its name. One that cannot be read as what it
// should be is dropped as a whole.
func (r *reader) field(path string, desc protoreflect.MessageDescriptor, name token, s *seen, depth int) bool {
	first := len(r.edits)
	fd := r.resolve(path, desc, name, s)
	at := join(path, name.text)
	if fd != nil {
		at = join(path, fd.TextName())
		r.place(at, name.offset)
	}
	if t := r.lex.peek(); fd == nil && desc != nil && (t.kind == tokenWord || t.kind == tokenQuoted) {
		return false // no field at all, but prose
	}
	keep := fd != nil && r.once(at, fd, name, s)
	if !keep {
		fd = nil // a second one is not checked, it could only say the same again
	}
	r.separator(fd, name)
	fits, ok := r.content(at, fd, name, s, depth)
	if !ok {
		return false
	}
	r.closeField(first, name.offset, keep && fits)
	if keep && !fits {
		r.dropped = append(r.dropped, at)
	}
	return true
}

// content reads a field's value or list of values. It returns false for one
// that the field cannot have, and false for one that the reader cannot follow.
func (r *reader) content(at string, fd protoreflect.FieldDescriptor, name token, s *seen, depth int) (fits, ok bool) {
	if !r.lex.peek().is("[") {
		return r.value(s.item(at, fd), fd, name.offset, depth)
	}
	open := r.lex.next()
	single := fd != nil && fd.Cardinality() != protoreflect.Repeated
	if single {
		r.repair(open.offset, at, expected(fd, open), "this field is no list: write one value, without brackets", open.offset, r.lex.pos, "")
	}
	values, fits, ok := r.list(at, fd, s, depth)
	if single && ok {
		r.edits = append(r.edits, edit{start: r.lex.pos - 1, end: r.lex.pos})
		fits = fits && values == 1
	}
	return fits, ok
}

// list reads the values of a list behind its bracket, and says how many.
func (r *reader) list(at string, fd protoreflect.FieldDescriptor, s *seen, depth int) (values int, fits, ok bool) {
	fits = true
	comma := true // a value may follow
	for {
		t := r.lex.peek()
		switch {
		case t.kind == tokenEnd || t.kind == tokenBroken:
			return values, false, false
		case t.is("]"):
			if comma && values > 0 {
				r.repair(t.offset, at, expected(fd, t), "remove the comma after the last value", r.lex.pos-1, r.lex.pos, "")
			}
			r.lex.next()
			return values, fits, true
		case t.is(",") && !comma:
			r.lex.next()
			comma = true
			continue
		case t.kind == tokenPunct && !t.is("{") && !t.is("<"):
			return values, false, false
		case !comma:
			r.repair(t.offset, at, `Expected ",", found "`+t.text+`"`, "separate the values of a list by commas", t.offset, t.offset, ",")
		}
		valueFits, ok := r.value(s.item(at, fd), fd, t.offset, depth)
		if !ok {
			return values, false, false
		}
		fits, comma = fits && valueFits, false
		values++
	}
}

// value reads one value whose place is offset. Its results are content's.
func (r *reader) value(path string, fd protoreflect.FieldDescriptor, offset int, depth int) (fits, ok bool) {
	r.place(path, offset)
	t := r.lex.next()
	switch {
	case t.is("{") || t.is("<"):
		var inner protoreflect.MessageDescriptor
		if fd != nil {
			inner = fd.Message()
		}
		fits = fd == nil || inner != nil
		if !fits {
			r.report(t.offset, path, expected(fd, t), "this field is no section: write one value, without braces")
		}
		return fits, r.message(path, inner, closing(t.text), depth+1)
	case t.kind == tokenQuoted:
		r.key(path, fd, t.text, offset)
		for r.lex.peek().kind == tokenQuoted { // adjacent strings are one
			r.lex.next()
		}
	case t.kind == tokenWord:
		if t.text == "-" && r.lex.peek().kind == tokenWord { // a sign may stand apart
			t.text += r.lex.next().text
		}
		r.key(path, fd, t.text, offset)
	default:
		return false, false
	}
	return fd == nil || r.scalar(path, fd, t), true
}

// key notes the place of a map's entry by its key.
func (r *reader) key(path string, fd protoreflect.FieldDescriptor, key string, offset int) {
	if fd == nil || !fd.ContainingMessage().IsMapEntry() || fd.Number() != 1 {
		return
	}
	r.place(Entry(path[:strings.LastIndexByte(path, '[')], key), offset)
}

// item gives the path of a field's next value: indexed where it repeats.
func (s *seen) item(at string, fd protoreflect.FieldDescriptor) string {
	if fd == nil || fd.Cardinality() != protoreflect.Repeated {
		return at
	}
	i := s.counts[at]
	s.counts[at]++
	return Index(at, i)
}

// place notes the first place of a path.
func (r *reader) place(path string, offset int) {
	if _, ok := r.places[path]; !ok {
		r.places[path] = offset
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

// Index is the path of an element of a repeated field, such as input[0].
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Entry is the path of a map's entry, such as metric_tags["team"].
func Entry(path, key string) string { return path + "[" + strconv.Quote(key) + "]" }

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
