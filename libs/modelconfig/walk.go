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
// field stands and what the format does not allow. The stock parser decides
// what is valid; it stops at its first error and has nothing to suggest, which
// is why this exists: after each slip the walker goes on, and keeps how the
// text reads without it, so that the parser can read the rest. It gives up
// silently where it cannot follow.
type walker struct {
	lex    lexer
	places map[string]int // path to offset of the field's name
	slips  []slip
	edits  []edit
	// dropped are the paths of fields that the edits leave out.
	dropped []string
}

// seen is what a message has so far.
type seen struct {
	counts map[string]int    // values of a repeated field, by path
	given  map[string]bool   // fields that do not repeat, by path
	oneofs map[string]string // the member that is given
}

func walk(text string, desc protoreflect.MessageDescriptor) *walker {
	w := &walker{lex: lexer{text: text}, places: make(map[string]int)}
	w.message("", desc, "", 0)
	return w
}

// message reads fields until close, or the end where close is empty. desc is
// nil inside of an unknown field.
func (w *walker) message(path string, desc protoreflect.MessageDescriptor, end string, depth int) bool {
	s := &seen{counts: make(map[string]int), given: make(map[string]bool), oneofs: make(map[string]string)}
	for {
		t := w.lex.next()
		switch {
		case t.kind == tokenEnd:
			return end == ""
		case t.is(end):
			return true
		case t.is(",") || t.is(";"):
			continue
		case t.is("/") && w.comment(t):
			continue
		case t.kind != tokenWord || depth > maxDepth:
			return false
		}
		if !w.field(path, desc, t, s, depth) {
			return false
		}
	}
}

// field reads a field after its name. One that cannot be read as what it
// should be is dropped as a whole.
func (w *walker) field(path string, desc protoreflect.MessageDescriptor, name token, s *seen, depth int) bool {
	first := len(w.edits)
	fd := w.resolve(path, desc, name, s)
	at := join(path, name.text)
	if fd != nil {
		at = join(path, fd.TextName())
		w.place(at, name.offset)
	}
	if t := w.lex.peek(); fd == nil && desc != nil && (t.kind == tokenWord || t.kind == tokenQuoted) {
		return false // no field at all, but prose
	}
	keep := fd != nil && w.once(at, fd, name, s)
	if !keep {
		fd = nil // a second one is not checked, it could only say the same again
	}
	w.separator(fd, name)
	fits, ok := w.content(at, fd, name, s, depth)
	if !ok {
		return false
	}
	w.settle(first, name.offset, keep && fits)
	if keep && !fits {
		w.dropped = append(w.dropped, at)
	}
	return true
}

// content reads a field's value or list of values. It returns false for one
// that the field cannot have, and false for one that the walker cannot follow.
func (w *walker) content(at string, fd protoreflect.FieldDescriptor, name token, s *seen, depth int) (fits, ok bool) {
	if !w.lex.peek().is("[") {
		return w.value(s.item(at, fd), fd, name.offset, depth)
	}
	open := w.lex.next()
	single := fd != nil && fd.Cardinality() != protoreflect.Repeated
	if single {
		w.repair(open.offset, at, expected(fd, open), "this field is no list: write one value, without brackets", open.offset, w.lex.pos, "")
	}
	values, fits, ok := w.list(at, fd, s, depth)
	if single && ok {
		w.edits = append(w.edits, edit{start: w.lex.pos - 1, end: w.lex.pos})
		fits = fits && values == 1
	}
	return fits, ok
}

// list reads the values of a list behind its bracket, and says how many.
func (w *walker) list(at string, fd protoreflect.FieldDescriptor, s *seen, depth int) (values int, fits, ok bool) {
	fits = true
	comma := true // a value may follow
	for {
		t := w.lex.peek()
		switch {
		case t.kind == tokenEnd || t.kind == tokenBroken:
			return values, false, false
		case t.is("]"):
			if comma && values > 0 {
				w.repair(t.offset, at, expected(fd, t), "remove the comma after the last value", w.lex.pos-1, w.lex.pos, "")
			}
			w.lex.next()
			return values, fits, true
		case t.is(",") && !comma:
			w.lex.next()
			comma = true
			continue
		case t.kind == tokenPunct && !t.is("{") && !t.is("<"):
			return values, false, false
		case !comma:
			w.repair(t.offset, at, `Expected ",", found "`+t.text+`"`, "separate the values of a list by commas", t.offset, t.offset, ",")
		}
		valueFits, ok := w.value(s.item(at, fd), fd, t.offset, depth)
		if !ok {
			return values, false, false
		}
		fits, comma = fits && valueFits, false
		values++
	}
}

// value reads one value whose place is offset. Its results are content's.
func (w *walker) value(path string, fd protoreflect.FieldDescriptor, offset int, depth int) (fits, ok bool) {
	w.place(path, offset)
	t := w.lex.next()
	switch {
	case t.is("{") || t.is("<"):
		var inner protoreflect.MessageDescriptor
		if fd != nil {
			inner = fd.Message()
		}
		fits = fd == nil || inner != nil
		if !fits {
			w.slip(t.offset, path, expected(fd, t), "this field is no section: write one value, without braces")
		}
		return fits, w.message(path, inner, closing(t.text), depth+1)
	case t.kind == tokenQuoted:
		w.key(path, fd, t.text, offset)
		for w.lex.peek().kind == tokenQuoted { // adjacent strings are one
			w.lex.next()
		}
	case t.kind == tokenWord:
		if t.text == "-" && w.lex.peek().kind == tokenWord { // a sign may stand apart
			t.text += w.lex.next().text
		}
		w.key(path, fd, t.text, offset)
	default:
		return false, false
	}
	return fd == nil || w.scalar(path, fd, t), true
}

// key notes the place of a map's entry by its key.
func (w *walker) key(path string, fd protoreflect.FieldDescriptor, key string, offset int) {
	if fd == nil || !fd.ContainingMessage().IsMapEntry() || fd.Number() != 1 {
		return
	}
	w.place(entry(path[:strings.LastIndexByte(path, '[')], key), offset)
}

// item gives the path of a field's next value: indexed where it repeats.
func (s *seen) item(at string, fd protoreflect.FieldDescriptor) string {
	if fd == nil || fd.Cardinality() != protoreflect.Repeated {
		return at
	}
	i := s.counts[at]
	s.counts[at]++
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
