package diagnostics

import (
	"strings"
	"unicode/utf8"
)

// token is one lexical piece of protobuf text.
type token struct {
	kind   tokenKind
	text   string // for a quoted string without its quotes, escapes as written
	offset int
}

type tokenKind uint8

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenQuoted
	tokenPunct
	tokenBroken // a string that does not end in its line
)

// is reports whether t is that one byte of punctuation.
func (t token) is(punct string) bool { return t.kind == tokenPunct && t.text == punct }

const byteOrderMark = "\ufeff"

// lexer splits protobuf text. It judges nothing: what is not a word, a string
// or a comment is punctuation of one byte.
type lexer struct {
	text string
	pos  int
}

func (l *lexer) next() token {
	l.skipBlank()
	if l.pos >= len(l.text) {
		return token{kind: tokenEnd, offset: len(l.text)}
	}
	start := l.pos
	if start == 0 && strings.HasPrefix(l.text, byteOrderMark) { // belongs to no name
		l.pos = len(byteOrderMark)
		return token{kind: tokenPunct, text: byteOrderMark}
	}
	c := l.text[start]
	if c == '"' || c == '\'' {
		return l.quoted(c)
	}
	for l.pos < len(l.text) && isWord(l.text[l.pos]) {
		l.pos++
	}
	if l.pos > start {
		return token{kind: tokenWord, text: l.text[start:l.pos], offset: start}
	}
	l.pos++
	return token{kind: tokenPunct, text: l.text[start:l.pos], offset: start}
}

func (l *lexer) peek() token {
	ahead := *l
	return ahead.next()
}

func (l *lexer) skipBlank() {
	for l.pos < len(l.text) {
		switch l.text[l.pos] {
		case ' ', '\t', '\r', '\n':
			l.pos++
		case '#':
			end := strings.IndexByte(l.text[l.pos:], '\n')
			if end < 0 {
				l.pos = len(l.text)
				return
			}
			l.pos += end
		default:
			return
		}
	}
}

func (l *lexer) quoted(quote byte) token {
	start := l.pos
	for l.pos++; l.pos < len(l.text) && l.text[l.pos] != quote && l.text[l.pos] != '\n'; l.pos++ {
		if l.text[l.pos] == '\\' {
			l.pos++
		}
	}
	end := min(l.pos, len(l.text))
	if end == len(l.text) || l.text[end] == '\n' {
		return token{kind: tokenBroken, text: l.text[start:end], offset: start}
	}
	l.pos++
	return token{kind: tokenQuoted, text: l.text[start+1 : end], offset: start}
}

// isWord also takes the characters of numbers, so that -1.5e+3 is one word, and
// the bytes of what is not ASCII, so that a name with an é is an unknown one.
func isWord(c byte) bool {
	return c >= utf8.RuneSelf || c == '_' || c == '.' || c == '-' || c == '+' ||
		'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// position gives line and column, in characters, both from 1.
func position(text string, offset int) (line, column int) {
	before := text[:offset]
	line = 1 + strings.Count(before, "\n")
	before = before[strings.LastIndexByte(before, '\n')+1:]
	return line, 1 + utf8.RuneCountInString(before)
}
