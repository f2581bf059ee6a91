package diagnostics

import (
	"cmp"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Dictionary suggests names for words that are not similar to them in spelling. The zero value
// knows none.
type Dictionary struct {
	Corrections []Correction
	// Alias gives the name that another document's name stands for; empty for
	// none. It may be nil.
	Alias func(name string) string
}

// Correction explains a name that the format does not have, but other documents do.
type Correction struct {
	// In is the message's path without its indices; * is any that has Meant.
	In, Name string
	// Meant is the name of the field in the same place; empty if there is none.
	Meant string
	// Fix says what to do where Meant alone does not.
	Fix string
}

// correct finds what was meant by a name that desc, at path, does not have:
// the field there, if there is one, and what to do.
func (d Dictionary) correct(path string, desc protoreflect.MessageDescriptor, name string) (meant, fix string) {
	bare := withoutIndices(path)
	for _, c := range d.Corrections {
		if c.Name == name && (c.In == bare || c.In == "*" && desc.Fields().ByTextName(c.Meant) != nil) {
			return c.Meant, cmp.Or(c.Fix, "did you mean "+c.Meant+"?")
		}
	}
	known := fieldNames(desc)
	name = snake(name)
	meant = d.Nearest(name, known)
	if path == "" && meant == "" {
		if section := home(desc, name); section != "" {
			return "", "it belongs into " + section
		}
	}
	return meant, d.Suggest(name, known)
}

// listed is the most names that a suggestion lists.
const listed = 12

// Suggest returns advice about an unknown name: the name that was probably meant, or the known
// names if they are few.
func (d Dictionary) Suggest(name string, known []string) string {
	if best := d.Nearest(name, known); best != "" {
		return "did you mean " + best + "?"
	}
	switch {
	case len(known) == 0:
		return "remove it; nothing is set here"
	case len(known) > listed:
		return "remove it or check its spelling"
	}
	return "known here: " + strings.Join(known, ", ")
}

// Nearest returns the name of known that differs least from name, or the
// empty string if none is near: differs by at most a third of its letters, or
// has most of name as its beginning. A value without its enum's prefix (FP32
// for TYPE_FP32) is near.
func (d Dictionary) Nearest(name string, known []string) string {
	if d.Alias != nil {
		name = cmp.Or(d.Alias(name), name)
	}
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if strings.HasSuffix(k, "_"+strings.ToUpper(name)) {
			return k
		}
		if distance := Distance(strings.ToLower(name), strings.ToLower(k)); distance < least {
			best, least = k, distance
		}
	}
	if best != "" {
		return best
	}
	for _, k := range known {
		if n := sharedPrefix(name, k); n >= 6 && n*4 >= len(name)*3 {
			return k
		}
	}
	return ""
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// home returns the path of the one message around desc that has a field of
// this name, for a field that was written in the wrong place; empty if there
// is none or several.
func home(desc protoreflect.MessageDescriptor, name string) string {
	var found []string
	for i := range desc.Fields().Len() {
		fd := desc.Fields().Get(i)
		if fd.Message() != nil && !fd.IsMap() && fd.Message().Fields().ByTextName(name) != nil {
			found = append(found, fd.TextName())
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// snake turns the spelling of JSON documents, maxBatchSize, into that of this
// format.
func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		if unicode.IsUpper(c) && i > 0 && name != strings.ToUpper(name) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// withoutIndices turns input[0].reshape into input.reshape.
func withoutIndices(path string) string {
	for {
		before, rest, ok := strings.Cut(path, "[")
		if !ok {
			return path
		}
		_, after, _ := strings.Cut(rest, "]")
		path = before + after
	}
}
