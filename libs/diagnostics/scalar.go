package diagnostics

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// scalar reports whether a field can have the value t, which is a word or a
// string. One whose meaning is plain, such as a number in quotes, is repaired.
func (r *reader) scalar(path string, fd protoreflect.FieldDescriptor, t token) bool {
	if message := misfit(fd, t); message != "" {
		return r.mend(path, fd, t, message)
	}
	if fd.Kind() != protoreflect.EnumKind || isInteger(t.text) || fd.Enum().Values().ByName(protoreflect.Name(t.text)) != nil {
		return true
	}
	if r.full() {
		return false
	}
	known := valueNames(fd.Enum())
	message, fix := fmt.Sprintf("unknown value %q of %s", t.text, path), r.dictionary.Suggest(t.text, known)
	meant := r.dictionary.Nearest(t.text, known)
	if meant == "" {
		r.report(t.offset, path, message, fix)
		return false
	}
	r.repair(t.offset, path, message, fix, t.offset, t.offset+len(t.text), meant)
	return true
}

// mend repairs a value of a wrong kind whose meaning is plain.
func (r *reader) mend(path string, fd protoreflect.FieldDescriptor, t token, message string) bool {
	bare := t
	bare.kind = tokenWord
	switch {
	case fd.Message() != nil:
		r.report(t.offset, path, message, sectionFix(fd))
		return false
	case fd.Kind() == protoreflect.StringKind:
		r.repair(t.offset, path, message, "write it in quotes: \""+t.text+"\"", t.offset, r.lex.pos, strconv.Quote(t.text))
		return true
	case t.kind == tokenQuoted && misfit(fd, bare) == "":
		r.repair(t.offset, path, message, "write it without quotes: "+t.text, t.offset, r.lex.pos, t.text)
		return true
	}
	r.report(t.offset, path, message, kindFix(fd))
	return false
}

// misfit says, as protobuf's parser in C++ does, why a value is none of the
// field's kind; empty if it is.
func misfit(fd protoreflect.FieldDescriptor, t token) string {
	quoted := t.kind == tokenQuoted
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return expected(fd, t)
	case protoreflect.StringKind:
		if !quoted {
			return expected(fd, t)
		}
	case protoreflect.EnumKind:
		if quoted || !isName(t.text) && !isInteger(t.text) {
			return expected(fd, t)
		}
	case protoreflect.BoolKind:
		return misfitBool(fd, t)
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if quoted || !isFloat(t.text) {
			return expected(fd, t)
		}
	default:
		return misfitInteger(fd, t)
	}
	return ""
}

func misfitBool(fd protoreflect.FieldDescriptor, t token) string {
	switch {
	case t.kind == tokenQuoted:
		return expected(fd, t)
	case t.text == "true" || t.text == "True" || t.text == "t" || t.text == "false" || t.text == "False" || t.text == "f":
		return ""
	case !isInteger(t.text):
		return fmt.Sprintf("Invalid value for boolean field %q. Value: %q", fd.TextName(), t.text)
	}
	if n, err := strconv.ParseUint(t.text, 0, 64); err != nil || n > 1 {
		return fmt.Sprintf("Integer out of range (%s)", t.text)
	}
	return ""
}

func misfitInteger(fd protoreflect.FieldDescriptor, t token) string {
	if t.kind == tokenQuoted || !isInteger(t.text) {
		return expected(fd, t)
	}
	low, high := integers(fd.Kind())
	if n, err := strconv.ParseInt(t.text, 0, 64); err == nil && n >= low && (n < 0 || uint64(n) <= high) {
		return ""
	}
	if n, err := strconv.ParseUint(t.text, 0, 64); err == nil && n <= high {
		return ""
	}
	return fmt.Sprintf("Integer out of range (%s)", t.text)
}

// integers gives the range of the integer kinds that the format has.
func integers(kind protoreflect.Kind) (low int64, high uint64) {
	switch kind {
	case protoreflect.Int32Kind:
		return math.MinInt32, math.MaxInt32
	case protoreflect.Uint32Kind:
		return 0, math.MaxUint32
	case protoreflect.Int64Kind:
		return math.MinInt64, math.MaxInt64
	}
	return 0, math.MaxUint64
}

// expected says what a field takes in place of t; fd is nil in a list of an
// unknown field.
func expected(fd protoreflect.FieldDescriptor, t token) string {
	found := t.text
	if t.kind == tokenQuoted {
		found = `"` + found + `"`
	}
	what := "integer"
	switch {
	case fd == nil:
		what = "value"
	case fd.Message() != nil:
		return fmt.Sprintf(`Expected "{", found "%s"`, found)
	case fd.Kind() == protoreflect.StringKind:
		what = "string"
	case fd.Kind() == protoreflect.EnumKind:
		what = "integer or identifier"
	case fd.Kind() == protoreflect.BoolKind:
		what = "identifier"
	case fd.Kind() == protoreflect.FloatKind || fd.Kind() == protoreflect.DoubleKind:
		what = "double"
	}
	return "Expected " + what + ", got: " + found
}

// sectionFix shows how a section is written.
func sectionFix(fd protoreflect.FieldDescriptor) string {
	if only := fd.Message().Fields(); only.Len() == 1 && only.Get(0).Kind() == protoreflect.StringKind {
		return fmt.Sprintf("write  %s { %s: \"...\" }", fd.TextName(), only.Get(0).TextName())
	}
	return fmt.Sprintf("it is a section: write  %s { ... }", fd.TextName())
}

func kindFix(fd protoreflect.FieldDescriptor) string {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return "write true or false"
	case protoreflect.EnumKind:
		return "write the name of a value, such as " + valueNames(fd.Enum())[1]
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return "write a number"
	}
	if fd.Kind() == protoreflect.Int64Kind {
		return "write a whole number"
	}
	low, high := integers(fd.Kind())
	return fmt.Sprintf("write a whole number from %d to %d", low, high)
}

// isInteger reports whether a word is a number as the format writes integers:
// decimal, octal after 0, hexadecimal after 0x.
func isInteger(word string) bool {
	digits := strings.TrimPrefix(word, "-")
	switch {
	case len(digits) > 2 && (digits[:2] == "0x" || digits[:2] == "0X"):
		return consists(digits[2:], "0123456789abcdefABCDEF")
	case strings.HasPrefix(digits, "0"):
		return consists(digits, "01234567")
	}
	return consists(digits, "0123456789")
}

// isName reports whether a word is an identifier.
func isName(word string) bool {
	return word != "" && !strings.ContainsAny(word, ".+-") && !consists(word[:1], "0123456789")
}

// isFloat reports whether a word is a number or one of the names of those that
// are none. What it takes too much is left to the parser.
func isFloat(word string) bool {
	switch strings.ToLower(strings.TrimPrefix(word, "-")) {
	case "inf", "infinity", "nan":
		return true
	}
	return word != "" && !isName(word)
}

func consists(word, of string) bool { return word != "" && strings.Trim(word, of) == "" }
