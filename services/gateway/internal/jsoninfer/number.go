package jsoninfer

import (
	"encoding/binary"
	"math"
	"strconv"
)

// number is one number of a document: ±mantissa·10^exp10 if digits is at most maxDigits; beyond that its text
// is used.
type number struct {
	mantissa uint64
	exp10    int
	digits   int
	negative bool
	// integral numbers have neither fraction nor exponent.
	integral bool
	// special numbers are NaN and the infinities.
	special bool
	value   float64 // of a special number
	text    []byte
}

const (
	// maxDigits is how many decimal digits always fit a uint64.
	maxDigits = 19
	// maxExact is the largest power of ten that a float64 holds exactly.
	maxExact = 22
)

// number reads a number.
func (s *scanner) number(n *number) error {
	s.peek()
	b, start := s.data, s.pos
	i := start
	n.negative = i < len(b) && b[i] == '-'
	if n.negative {
		i++
	}
	first := i
	m, i := digits(b, i, 0)
	n.digits, n.exp10, n.integral, n.special = i-first, 0, true, false
	if n.digits == 0 {
		return s.special(n, first)
	}
	if b[first] == '0' { // no digit follows
		m, i, n.digits = 0, first+1, 1
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		m, i = digits(b, from, m)
		if i == from {
			s.pos = i
			return s.fail("Miss fraction part in number.")
		}
		n.digits, n.exp10, n.integral = n.digits+i-from, from-i, false
	}
	n.mantissa = m
	if i < len(b) && b[i]|0x20 == 'e' {
		var err error
		if i, err = s.exponent(n, i+1); err != nil {
			return err
		}
	}
	n.text, s.pos = b[start:i], i
	return nil
}

// tooBig returns the error for the number that was read last. It reports the number's start.
func (s *scanner) tooBig(n *number) error {
	s.pos -= len(n.text)
	return s.fail("Number too big to be stored in double.")
}

// digits reads decimal digits starting at i and appends them to m, which is wrong if there are more than
// maxDigits.
func digits(b []byte, i int, m uint64) (mantissa uint64, next int) {
	for i+8 <= len(b) {
		v := binary.LittleEndian.Uint64(b[i:])
		if !eightDigits(v) {
			break
		}
		m = m*1e8 + eight(v)
		i += 8
	}
	for i < len(b) && b[i]-'0' <= 9 {
		m = m*10 + uint64(b[i]-'0')
		i++
	}
	return m, i
}

// eightDigits reports whether all bytes of v are ASCII digits: the high
// nibble of each is 3, also after 6 is added.
func eightDigits(v uint64) bool {
	const nibbles = 0xF0F0F0F0F0F0F0F0
	return v&nibbles|(v+0x0606060606060606)&nibbles>>4 == 0x3333333333333333
}

// eight converts eight ASCII digits, the first in the lowest byte, by adding
// up neighbors: first bytes, then pairs, then fours.
func eight(v uint64) uint64 {
	v -= 0x3030303030303030
	v = v*10 + v>>8
	const mask = 0x000000FF000000FF
	const mul1 = 100 + 1_000_000<<32
	const mul2 = 1 + 10_000<<32
	return ((v&mask)*mul1 + (v>>16&mask)*mul2) >> 32
}

// exponent reads what follows the letter e, starting at i.
func (s *scanner) exponent(n *number, i int) (int, error) {
	b := s.data
	sign := 1
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		if b[i] == '-' {
			sign = -1
		}
		i++
	}
	from, e := i, 0
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		if e < 10_000 { // larger ones are parsed from the text
			e = e*10 + int(b[i]-'0')
		}
	}
	if i == from {
		s.pos = i
		return i, s.fail("Miss exponent in number.")
	}
	n.exp10 += sign * e
	n.integral = false
	return i, nil
}

// special reads NaN, Inf or Infinity, whose first letter is at i.
func (s *scanner) special(n *number, i int) error {
	rest := s.data[i:]
	var word string
	n.value = math.NaN()
	switch {
	case hasPrefix(rest, "NaN"):
		word = "NaN"
	case hasPrefix(rest, "Infinity"):
		word = "Infinity"
	case hasPrefix(rest, "Inf"):
		word = "Inf"
	default:
		s.pos = i
		return s.fail("Invalid value.")
	}
	if word != "NaN" {
		n.value = math.Inf(1)
	}
	if n.negative {
		n.value = -n.value
	}
	n.special, n.integral = true, false
	n.text, s.pos = s.data[s.pos:i+len(word)], i+len(word)
	return nil
}

func hasPrefix(b []byte, p string) bool { return len(b) >= len(p) && string(b[:len(p)]) == p }

// integer returns the number's absolute value, or false if it is not integral or exceeds a uint64.
func (n *number) integer() (uint64, bool) {
	if !n.integral {
		return 0, false
	}
	if n.digits <= maxDigits {
		return n.mantissa, true
	}
	text := n.text
	if n.negative {
		text = text[1:]
	}
	u, err := strconv.ParseUint(string(text), 10, 64)
	return u, err == nil
}

// int64 returns the number as a signed integer, or false if it is not one.
func (n *number) int64() (int64, bool) {
	u, ok := n.integer()
	if n.negative {
		return -int64(u), ok && u <= 1<<63
	}
	return int64(u), ok && u <= math.MaxInt64
}

// uint64 returns the number as an unsigned integer, or false if it is not one.
func (n *number) uint64() (uint64, bool) {
	u, ok := n.integer()
	return u, ok && (!n.negative || u == 0)
}

// float64 returns the nearest float64, or false if the number is too big for one.
func (n *number) float64() (float64, bool) {
	switch {
	case n.special:
		return n.value, true
	case n.digits > maxDigits || n.mantissa >= 1<<53 || n.exp10 < -maxExact || n.exp10 > maxExact:
		f, err := strconv.ParseFloat(string(n.text), 64)
		return f, err == nil
	}
	// Both operands are exact, so the result is rounded once.
	return n.signed(scale(float64(n.mantissa), n.exp10)), true
}

// float32 returns the nearest float32, which is an infinity for numbers that only a float64 can hold, or false
// if not even a float64 can.
func (n *number) float32() (float32, bool) {
	switch {
	case n.special:
		return float32(n.value), true
	case n.digits > maxDigits || n.exp10 < -maxExact || n.exp10 > maxExact:
		return n.slowFloat32()
	}
	// The mantissa's conversion and the scaling round once each, so f is off by at most two units in its last
	// place. Unless f is that close to the midpoint between two float32s, it rounds to the right one. With
	// these exponents no float32 is subnormal.
	f := scale(float64(n.mantissa), n.exp10)
	const half, slack = 1 << 28, 4
	low := math.Float64bits(f) & (1<<29 - 1)
	if low-(half-slack) <= 2*slack {
		return n.slowFloat32()
	}
	return float32(n.signed(f)), true
}

func (n *number) slowFloat32() (float32, bool) {
	if f, err := strconv.ParseFloat(string(n.text), 32); err == nil {
		return float32(f), true
	}
	f, err := strconv.ParseFloat(string(n.text), 64)
	return float32(f), err == nil
}

func (n *number) signed(f float64) float64 {
	if n.negative {
		return -f
	}
	return f
}

// scale returns f·10^e for |e| ≤ maxExact.
func scale(f float64, e int) float64 {
	if e < 0 {
		return f / power(-e)
	}
	return f * power(e)
}

func power(e int) float64 {
	return [...]float64{
		1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
		1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
	}[e]
}
