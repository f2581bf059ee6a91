package jsoninfer

import (
	"unicode/utf16"
	"unicode/utf8"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// MaxDepth is the maximum nesting depth of arrays and objects.
const MaxDepth = 100

// scanner walks a JSON document. Its errors report the byte offset.
type scanner struct {
	data []byte
	pos  int
	text []byte // the last string that had escapes

	account *memory.Account // charged for decoded strings; may be nil
}

// keepStrings is the maximum memory, in bytes, that a decoder retains for the strings of the next request, and
// as much again for its BYTES tensors.
const keepStrings = 64 << 10

// grow returns dst with space for n more bytes, which it charges first.
func (s *scanner) grow(dst []byte, n int) ([]byte, error) {
	if cap(dst)-len(dst) >= n {
		return dst, nil
	}
	room := max(2*cap(dst), len(dst)+n, 64)
	if err := s.account.Retain(int64(room)); err != nil {
		return dst, err
	}
	larger := append(make([]byte, 0, room), dst...)
	s.leave(dst)
	return larger, nil
}

// leave refunds the charge for a buffer, unless it is small enough for decoders to retain.
func (s *scanner) leave(b []byte) {
	if cap(b) > keepStrings {
		s.account.Drop(int64(cap(b)))
	}
}

func (s *scanner) fail(what string) error {
	return errs.New(errs.InvalidJSON, "failed to parse the request JSON buffer: %s at %d", what, s.pos)
}

// byteOrderMark skips the byte order mark with which some clients start UTF-8.
func (s *scanner) byteOrderMark() {
	if hasPrefix(s.data, "\uFEFF") {
		s.pos = len("\uFEFF")
	}
}

// peek skips white space and returns the next byte without consuming it, or 0 at the end; no value starts with
// 0.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// accept skips white space and then c, if c follows.
func (s *scanner) accept(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

// end checks that only white space is left.
func (s *scanner) end() error {
	if s.peek(); s.pos < len(s.data) {
		return s.fail("The document root must not be followed by other values.")
	}
	return nil
}

// object calls member for each member, with the scanner at the value, which member must read. The key is valid
// until the next string is read.
func (s *scanner) object(member func(key []byte) error) error {
	s.pos++ // {
	if s.accept('}') {
		return nil
	}
	for {
		if s.peek() != '"' {
			return s.fail("Missing a name for object member.")
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		if !s.accept(':') {
			return s.fail("Missing a colon after a name of object member.")
		}
		if err := member(key); err != nil {
			return err
		}
		if s.accept('}') {
			return nil
		}
		if !s.accept(',') {
			return s.fail("Missing a comma or '}' after an object member.")
		}
	}
}

// array calls element with the scanner at each element, which element must read.
func (s *scanner) array(element func() error) error {
	s.pos++ // [
	if s.accept(']') {
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if s.accept(']') {
			return nil
		}
		if !s.accept(',') {
			return s.fail("Missing a comma or ']' after an array element.")
		}
	}
}

// skip skips a value of any kind.
func (s *scanner) skip() error { return s.skipAt(0) }

func (s *scanner) skipAt(depth int) error {
	if depth > MaxDepth {
		return tooDeep()
	}
	switch s.peek() {
	case '{':
		return s.object(func([]byte) error { return s.skipAt(depth + 1) })
	case '[':
		return s.array(func() error { return s.skipAt(depth + 1) })
	case '"':
		_, err := s.str()
		return err
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	var n number
	return s.number(&n)
}

func tooDeep() error {
	return errs.New(errs.TensorDataInvalid, "JSON nesting depth exceeds maximum allowed limit (%d)", MaxDepth)
}

// word reads a literal.
func (s *scanner) word(w string) error {
	for i := range len(w) {
		if s.pos == len(s.data) || s.data[s.pos] != w[i] {
			return s.fail("Invalid value.")
		}
		s.pos++
	}
	return nil
}

// boolean reads true or false. If neither follows, it reads nothing and known is false.
func (s *scanner) boolean() (value, known bool, err error) {
	switch s.peek() {
	case 't':
		return true, true, s.word("true")
	case 'f':
		return false, true, s.word("false")
	}
	return false, false, nil
}

// str reads a string. The result is valid until the next string is read.
func (s *scanner) str() ([]byte, error) {
	start := s.pos + 1
	for i := start; i < len(s.data); i++ {
		switch c := s.data[i]; {
		case c == '"':
			s.pos = i + 1
			return s.data[start:i], nil
		case c == '\\' || c < ' ':
			var err error
			s.text, err = s.appendStr(s.text[:0])
			return s.text, err
		}
	}
	s.pos = len(s.data)
	return nil, s.fail("Missing a closing quotation mark in string.")
}

// appendStr reads a string and appends its bytes to dst.
func (s *scanner) appendStr(dst []byte) ([]byte, error) {
	s.pos++ // "
	for s.pos < len(s.data) {
		from := s.pos
		for s.pos < len(s.data) && s.data[s.pos] != '"' && s.data[s.pos] != '\\' && s.data[s.pos] >= ' ' {
			s.pos++
		}
		var err error
		if dst, err = s.grow(dst, s.pos-from+utf8.UTFMax); err != nil {
			return dst, err
		}
		dst = append(dst, s.data[from:s.pos]...)
		if s.pos == len(s.data) {
			break
		}
		switch s.data[s.pos] {
		case '"':
			s.pos++
			return dst, nil
		case '\\':
			if dst, err = s.escape(dst); err != nil {
				return dst, err
			}
		case 0:
			return dst, s.fail("Missing a closing quotation mark in string.")
		default:
			return dst, s.fail("Invalid escape character in string.")
		}
	}
	return dst, s.fail("Missing a closing quotation mark in string.")
}

// escape reads one escape sequence.
func (s *scanner) escape(dst []byte) ([]byte, error) {
	c := byte(0)
	if s.pos+1 < len(s.data) {
		c = s.data[s.pos+1]
	}
	switch c {
	case '"', '\\', '/':
		dst = append(dst, c)
	case 'b':
		dst = append(dst, '\b')
	case 'f':
		dst = append(dst, '\f')
	case 'n':
		dst = append(dst, '\n')
	case 'r':
		dst = append(dst, '\r')
	case 't':
		dst = append(dst, '\t')
	case 'u':
		return s.unicode(dst)
	default:
		return dst, s.fail("Invalid escape character in string.")
	}
	s.pos += 2
	return dst, nil
}

// unicode reads \uXXXX, or two of them that form a surrogate pair.
func (s *scanner) unicode(dst []byte) ([]byte, error) {
	r, ok := s.hex4(s.pos)
	if !ok {
		return dst, s.fail("Incorrect hex digit after \\u escape in string.")
	}
	if !utf16.IsSurrogate(r) {
		s.pos += 6
		return utf8.AppendRune(dst, r), nil
	}
	low, ok := s.hex4(s.pos + 6)
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return dst, s.fail("The surrogate pair in string is invalid.")
	}
	s.pos += 12
	return utf8.AppendRune(dst, r), nil
}

// hex4 reads the \uXXXX at i.
func (s *scanner) hex4(i int) (rune, bool) {
	if len(s.data) < i+6 || s.data[i] != '\\' || s.data[i+1] != 'u' {
		return 0, false
	}
	r := rune(0)
	for _, c := range s.data[i+2 : i+6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
