package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nereid-serving/nereid/libs/errs"
)

// slip is something in the text that the format does not allow.
type slip struct {
	offset int
	field  string
	// message is the one that protobuf's parser in C++, and so Triton, has,
	// but for names, which are told with their place.
	message, fix string
}

// edit is how the text reads without a slip: the bytes from start to end
// replaced by text.
type edit struct {
	start, end int
	text       string
	// from and to are the whole field around it, which is left out where the
	// replacement does not do.
	from, to int
}

// full reports whether no more slips are noted, so that nothing need be looked
// up for them.
func (w *walker) full() bool { return len(w.slips) >= maxProblems }

// slip notes what is wrong with a field that cannot be kept.
func (w *walker) slip(offset int, field, message, fix string) {
	if !w.full() {
		w.slips = append(w.slips, slip{offset, field, message, fix})
	}
}

// repair notes what is wrong and what stands for it.
func (w *walker) repair(offset int, field, message, fix string, start, end int, text string) {
	w.slip(offset, field, message, fix)
	w.edits = append(w.edits, edit{start: start, end: end, text: text})
}

// settle gives the edits since first the field that they are in, which begins
// at from and was read to its end, or drops that field.
func (w *walker) settle(first, from int, keep bool) {
	if keep && len(w.edits) == first {
		return
	}
	to := w.lex.pos
	if !keep {
		if t := w.lex.peek(); t.is(",") || t.is(";") {
			w.lex.next()
			to = w.lex.pos
		}
		w.edits = append(w.edits[:first], edit{start: from, end: to})
	}
	for i := first; i < len(w.edits); i++ {
		if w.edits[i].to == 0 { // not of a field within this one
			w.edits[i].from, w.edits[i].to = from, to
		}
	}
}

// comment reads a comment as other languages write it.
func (w *walker) comment(t token) bool {
	if !strings.HasPrefix(w.lex.text[w.lex.pos:], "/") {
		return false
	}
	end := strings.IndexByte(w.lex.text[t.offset:], '\n')
	if end < 0 {
		end = len(w.lex.text) - t.offset
	}
	w.lex.pos = t.offset + end
	w.slip(t.offset, "", "Expected identifier, got: /", "comments begin with #")
	w.edits = append(w.edits, edit{start: t.offset, end: w.lex.pos, from: t.offset, to: w.lex.pos})
	return true
}

// once reports whether a field may stand here besides those before it.
func (w *walker) once(at string, fd protoreflect.FieldDescriptor, name token, s *seen) bool {
	if fd.Cardinality() == protoreflect.Repeated {
		return true
	}
	if s.given[at] {
		w.slip(name.offset, at, fmt.Sprintf("Non-repeated field %q is specified multiple times", fd.TextName()), "keep one, with all that both say")
		return false
	}
	s.given[at] = true
	choice := fd.ContainingOneof()
	if choice == nil {
		return true
	}
	if other := s.oneofs[string(choice.Name())]; other != "" {
		w.slip(name.offset, at, fmt.Sprintf("Field %q is specified along with field %q, another member of oneof %q", fd.TextName(), other, choice.Name()), "keep one of the two")
		return false
	}
	s.oneofs[string(choice.Name())] = fd.TextName()
	return true
}

// separator reads what is between a name and its value.
func (w *walker) separator(fd protoreflect.FieldDescriptor, name token) {
	t := w.lex.peek()
	if t.is(":") {
		w.lex.next()
		return
	}
	fix := fmt.Sprintf("write  %s: VALUE", name.text)
	message := fmt.Sprintf("Expected \":\", found %q", t.text)
	switch {
	case t.is("="):
		w.lex.next()
		w.repair(t.offset, name.text, message, fix, t.offset, w.lex.pos, ":")
	case fd != nil && fd.Message() == nil && (t.kind == tokenWord || t.kind == tokenQuoted || t.is("[")):
		w.repair(t.offset, name.text, message, fix, t.offset, t.offset, ":")
	}
}

// resolve finds the field of that name, or the one that was meant by it.
func (w *walker) resolve(path string, desc protoreflect.MessageDescriptor, name token, s *seen) protoreflect.FieldDescriptor {
	if desc == nil {
		return nil
	}
	if fd := desc.Fields().ByTextName(name.text); fd != nil {
		return fd
	}
	if w.full() {
		return nil
	}
	message := fmt.Sprintf("unknown field %q", name.text)
	if path != "" {
		message += " in " + path
	}
	meant, fix := correct(path, desc, name.text)
	w.slip(name.offset, join(path, name.text), message, fix)
	fd := desc.Fields().ByTextName(meant)
	if fd == nil || s.given[join(path, meant)] || fd.ContainingOneof() != nil && s.oneofs[string(fd.ContainingOneof().Name())] != "" {
		return nil
	}
	w.edits = append(w.edits, edit{start: name.offset, end: name.offset + len(name.text), text: meant})
	return fd
}

// readings gives the text without its slips, likeliest first: with each
// repaired, and with the fields that have one left out. The second keeps the
// places of all that is left.
func (w *walker) readings(text string) []string {
	return []string{replaced(text, w.edits), blanked(text, w.edits)}
}

func replaced(text string, edits []edit) string {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(text[at:e.start] + e.text)
		at = e.end
	}
	return b.String() + text[at:]
}

// blanked goes over each byte once, however many edits a field has.
func blanked(text string, edits []edit) string {
	edits = slices.SortedFunc(slices.Values(edits), func(a, b edit) int { return a.from - b.from })
	out := []byte(text)
	at := 0
	for _, e := range edits {
		for at = max(at, e.from); at < e.to; at++ {
			if out[at] != '\n' {
				out[at] = ' '
			}
		}
	}
	return string(out)
}

// wrote gives the slips as problems.
func (w *walker) wrote(text string) Problems {
	var problems Problems
	for _, s := range w.slips {
		p := Problem{Reason: errs.ConfigInvalid, Field: s.field, Message: s.message, Fix: s.fix}
		p.Line, p.Column = position(text, s.offset)
		problems = append(problems, p)
	}
	return problems
}

// consequences removes the problems of fields that were left out in reading:
// what they lack, they have.
func (w *walker) consequences(problems Problems) Problems {
	if w == nil {
		return problems
	}
	return slices.DeleteFunc(problems, func(p Problem) bool {
		return slices.ContainsFunc(w.dropped, func(path string) bool {
			rest, within := strings.CutPrefix(p.Field, path)
			return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
		})
	})
}
