package diagnostics

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Finding is an error in the text.
type Finding struct {
	// Field is the path of the field, such as input[0].dims; empty for what
	// belongs to none.
	Field string
	// Line and Column, from 1, are its position.
	Line, Column int
	// Message is that of protobuf's C++ parser, and so Triton's, except for unknown names.
	Message string
	// Fix says what to do.
	Fix string
}

// edit is how the text reads without a finding: the bytes from start to end
// replaced by text.
type edit struct {
	start, end int
	text       string
	// from and to are the whole field around it, which is left out where the
	// replacement does not do.
	from, to int
}

// full reports whether no more findings are kept, so that nothing need be looked
// up for them.
func (r *reader) full() bool { return len(r.Findings) >= MaxFindings }

// report adds a finding about a field that cannot be kept.
func (r *reader) report(offset int, field, message, fix string) {
	if r.full() {
		return
	}
	line, column := position(r.text, offset)
	r.Findings = append(r.Findings, Finding{Field: field, Line: line, Column: column, Message: message, Fix: fix})
}

// repair adds a finding, and the edit that mends it.
func (r *reader) repair(offset int, field, message, fix string, start, end int, text string) {
	r.report(offset, field, message, fix)
	r.edits = append(r.edits, edit{start: start, end: end, text: text})
}

// closeField gives the edits since first their field, which begins at from and
// was read to its end, or drops that field.
func (r *reader) closeField(first, from int, keep bool) {
	if keep && len(r.edits) == first {
		return
	}
	to := r.lex.pos
	if !keep {
		if t := r.lex.peek(); t.is(",") || t.is(";") {
			r.lex.next()
			to = r.lex.pos
		}
		r.edits = append(r.edits[:first], edit{start: from, end: to})
	}
	for i := first; i < len(r.edits); i++ {
		if r.edits[i].to == 0 { // not of a field within this one
			r.edits[i].from, r.edits[i].to = from, to
		}
	}
}

// comment reads a comment as other languages write it.
func (r *reader) comment(t token) bool {
	if !strings.HasPrefix(r.lex.text[r.lex.pos:], "/") {
		return false
	}
	end := strings.IndexByte(r.lex.text[t.offset:], '\n')
	if end < 0 {
		end = len(r.lex.text) - t.offset
	}
	r.lex.pos = t.offset + end
	r.report(t.offset, "", "Expected identifier, got: /", "comments begin with #")
	r.edits = append(r.edits, edit{start: t.offset, end: r.lex.pos, from: t.offset, to: r.lex.pos})
	return true
}

// once reports whether a field may stand here besides those before it.
func (r *reader) once(at string, fd protoreflect.FieldDescriptor, name token, s *seen) bool {
	if fd.Cardinality() == protoreflect.Repeated {
		return true
	}
	if s.given[at] {
		r.report(name.offset, at, fmt.Sprintf("Non-repeated field %q is specified multiple times", fd.TextName()), "keep one, with all that both say")
		return false
	}
	s.given[at] = true
	choice := fd.ContainingOneof()
	if choice == nil {
		return true
	}
	if other := s.oneofs[string(choice.Name())]; other != "" {
		r.report(name.offset, at, fmt.Sprintf("Field %q is specified along with field %q, another member of oneof %q", fd.TextName(), other, choice.Name()), "keep one of the two")
		return false
	}
	s.oneofs[string(choice.Name())] = fd.TextName()
	return true
}

// separator reads what is between a name and its value.
func (r *reader) separator(fd protoreflect.FieldDescriptor, name token) {
	t := r.lex.peek()
	if t.is(":") {
		r.lex.next()
		return
	}
	fix := fmt.Sprintf("write  %s: VALUE", name.text)
	message := fmt.Sprintf("Expected \":\", found %q", t.text)
	switch {
	case t.is("="):
		r.lex.next()
		r.repair(t.offset, name.text, message, fix, t.offset, r.lex.pos, ":")
	case fd != nil && fd.Message() == nil && (t.kind == tokenWord || t.kind == tokenQuoted || t.is("[")):
		r.repair(t.offset, name.text, message, fix, t.offset, t.offset, ":")
	}
}

// resolve finds the field of that name, or the one that was meant by it.
func (r *reader) resolve(path string, desc protoreflect.MessageDescriptor, name token, s *seen) protoreflect.FieldDescriptor {
	if desc == nil {
		return nil
	}
	if fd := desc.Fields().ByTextName(name.text); fd != nil {
		return fd
	}
	if r.full() {
		return nil
	}
	message := fmt.Sprintf("unknown field %q", name.text)
	if path != "" {
		message += " in " + path
	}
	meant, fix := r.dictionary.correct(path, desc, name.text)
	r.report(name.offset, join(path, name.text), message, fix)
	fd := desc.Fields().ByTextName(meant)
	if fd == nil || s.given[join(path, meant)] || fd.ContainingOneof() != nil && s.oneofs[string(fd.ContainingOneof().Name())] != "" {
		return nil
	}
	r.edits = append(r.edits, edit{start: name.offset, end: name.offset + len(name.text), text: meant})
	return fd
}

// Repaired returns the text without its findings in two ways, the likelier first: with each
// finding repaired, and with the affected fields removed. The second preserves the positions of
// the rest.
func (t *Text) Repaired() (repaired, without string) {
	return replaced(t.text, t.edits), blanked(t.text, t.edits)
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
