package stub

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
)

// cursor reads JSON of a known form without reflection. After an error it gives zero
// values and ends every loop.
type cursor struct {
	data []byte
	at   int
	err  error
}

// maxDepth bounds what is skipped.
const maxDepth = 64

func (c *cursor) fail() {
	if c.err == nil {
		c.err = errors.New("a message of the stub is not JSON of the form that messages have")
	}
	c.at = len(c.data)
}

// peek returns the next byte that is no space; 0 at the end.
func (c *cursor) peek() byte {
	for ; c.at < len(c.data); c.at++ {
		switch b := c.data[c.at]; b {
		case ' ', '\n', '\r', '\t':
		default:
			return b
		}
	}
	return 0
}

func (c *cursor) expect(b byte) {
	if c.peek() != b {
		c.fail()
		return
	}
	c.at++
}

// more steps to the next element of a list or object, of which n have been read; at
// its end, which it passes, it is false.
func (c *cursor) more(n int, end byte) bool {
	if c.err != nil {
		return false
	}
	switch next := c.peek(); {
	case next == end:
		c.at++
		return false
	case n == 0:
		return next != 0 || c.bad()
	case next == ',':
		c.at++
		return true
	}
	return c.bad()
}

func (c *cursor) bad() bool {
	c.fail()
	return false
}

// key reads a member's name and the colon.
func (c *cursor) key() []byte {
	k := c.text()
	c.expect(':')
	return k
}

// text reads a string. It shares memory with the message where it can.
func (c *cursor) text() []byte {
	c.expect('"')
	start := c.at
	escaped := false
	for ; c.at < len(c.data); c.at++ {
		switch c.data[c.at] {
		case '\\':
			escaped = true
			c.at++
		case '"':
			raw := c.data[start:c.at]
			c.at++
			if !escaped {
				return raw
			}
			var s string
			if json.Unmarshal(c.data[start-1:c.at], &s) != nil {
				c.fail()
			}
			return []byte(s)
		}
	}
	c.fail()
	return nil
}

// number reads what a number is made of.
func (c *cursor) number() []byte {
	c.peek()
	start := c.at
	for ; c.at < len(c.data); c.at++ {
		switch b := c.data[c.at]; {
		case b >= '0' && b <= '9', b == '-', b == '+', b == '.', b == 'e', b == 'E':
		default:
			return c.data[start:c.at]
		}
	}
	return c.data[start:c.at]
}

// uint reads a whole number of at most the limit.
func (c *cursor) uint(limit uint64) uint64 {
	text := c.number()
	if len(text) == 0 || len(text) > 20 {
		c.fail()
		return 0
	}
	n := uint64(0)
	for _, b := range text {
		d := uint64(b - '0')
		if b < '0' || b > '9' || n > (math.MaxUint64-d)/10 {
			c.fail()
			return 0
		}
		n = 10*n + d
	}
	if n > limit {
		c.fail()
		return 0
	}
	return n
}

// size reads a whole number that is no larger than lengths can be.
func (c *cursor) size() int64 { return int64(c.uint(math.MaxInt64)) } //nolint:gosec // bounded

// float reads a number as Python writes it.
func (c *cursor) float() float64 {
	switch b := c.peek(); {
	case b == 'N':
		c.word("NaN")
		return math.NaN()
	case b == 'I':
		c.word("Infinity")
		return math.Inf(1)
	case b == '-' && c.at+1 < len(c.data) && c.data[c.at+1] == 'I':
		c.word("-Infinity")
		return math.Inf(-1)
	}
	f, err := strconv.ParseFloat(string(c.number()), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		c.fail()
	}
	return f
}

// word passes a literal.
func (c *cursor) word(w string) {
	if c.peek(); len(c.data)-c.at < len(w) || string(c.data[c.at:c.at+len(w)]) != w {
		c.fail()
		return
	}
	c.at += len(w)
}

func (c *cursor) bool() bool {
	if c.peek() == 't' {
		c.word("true")
		return true
	}
	c.word("false")
	return false
}

// value reads a parameter's value: a bool, int64, float64 or string.
func (c *cursor) value() any {
	switch c.peek() {
	case '"':
		return string(c.text())
	case 't', 'f':
		return c.bool()
	case 'N', 'I':
		return c.float()
	}
	start := c.at
	text := c.number()
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n
	}
	c.at = start
	return c.float()
}

// skip passes any value.
func (c *cursor) skip(depth int) {
	switch b := c.peek(); {
	case depth > maxDepth:
		c.fail()
	case b == '{':
		c.at++
		for n := 0; c.more(n, '}'); n++ {
			c.key()
			c.skip(depth + 1)
		}
	case b == '[':
		c.at++
		for n := 0; c.more(n, ']'); n++ {
			c.skip(depth + 1)
		}
	case b == '"':
		c.text()
	case b == 't', b == 'f':
		c.bool()
	case b == 'n':
		c.word("null")
	default:
		c.float()
	}
}
