package infer

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
)

const (
	// wordBits is how many requests a word of a span tells of.
	wordBits = 64
	// minWords and maxWords bound the memory for one gateway: from 512 bytes to
	// 128 KiB, which tell of its last million requests.
	minWords, maxWords = 1 << 6, 1 << 14
	// maxOrigins is for how many gateways requests are remembered; each
	// incarnation counts.
	maxOrigins = 1024
)

// Recent is a set of requests that remembers, for each gateway, about the last million: a bit
// for each. A worker keeps the requests that it has started, and a scheduler those of all its
// workers, so that none runs twice. The zero value is empty. It is not safe for concurrent use.
type Recent struct {
	of   map[uint64]*span
	uses uint64
}

// span is the recent requests of one gateway.
type span struct {
	words     []uint64 // a ring by number/wordBits; zero outside of low to high
	low, high uint64   // words, inclusive
	forgotten uint64   // numbers below may have been in the set
	used      uint64
}

// Memory is the state of a request in a set.
type Memory uint8

// The states of a request in a set.
const (
	// Absent: it was never added.
	Absent Memory = iota
	// Present: it was added.
	Present
	// Forgotten: it may have been added, too long ago to be remembered.
	Forgotten
)

// Started is the part of a set for one gateway.
type Started struct {
	// Origin is the gateway: see [RequestID].
	Origin uint64
	// Forgotten requests, those of lower numbers, may have been in the set.
	Forgotten uint64
	// First is the number of the lowest bit of Bits.
	First uint64
	// Bits has a bit for each number from First on, in each byte the lowest
	// first.
	Bits []byte
}

// Add puts a request into the set.
func (s *Recent) Add(id RequestID) { s.span(id.Origin).add(id.Number) }

// Remove takes a request out of the set, if it is not forgotten.
func (s *Recent) Remove(id RequestID) {
	if s.Lookup(id) == Present {
		p := s.of[id.Origin]
		p.words[id.Number/wordBits%uint64(len(p.words))] &^= bit(id.Number)
	}
}

// Lookup returns the state of a request in the set.
func (s *Recent) Lookup(id RequestID) Memory {
	p := s.of[id.Origin]
	if p == nil {
		return Absent
	}
	word := id.Number / wordBits
	switch {
	case id.Number < p.forgotten:
		return Forgotten
	case word < p.low || word > p.high || p.at(word)&bit(id.Number) == 0:
		return Absent
	}
	return Present
}

// Started returns a copy of the set's contents, in the order of the gateways.
func (s *Recent) Started() []Started {
	list := make([]Started, 0, len(s.of))
	for origin, p := range s.of {
		b := Started{Origin: origin, Forgotten: p.forgotten, First: p.low * wordBits}
		for word := p.low; word <= p.high; word++ {
			b.Bits = binary.LittleEndian.AppendUint64(b.Bits, p.at(word))
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b Started) int { return cmp.Compare(a.Origin, b.Origin) })
	return list
}

// Merge adds the contents of another set.
func (s *Recent) Merge(b Started) {
	p := s.span(b.Origin)
	for i, eight := range b.Bits {
		for ; eight != 0; eight &= eight - 1 {
			p.add(b.First + uint64(8*i+bits.TrailingZeros8(eight)))
		}
	}
	p.forgotten = max(p.forgotten, b.Forgotten)
}

// span returns what is remembered of a gateway. When there are too many, the
// least recently used is dropped, which is most likely gone.
func (s *Recent) span(origin uint64) *span {
	p := s.of[origin]
	if p == nil {
		if s.of == nil {
			s.of = make(map[uint64]*span)
		}
		if len(s.of) == maxOrigins {
			delete(s.of, slices.MinFunc(slices.Collect(maps.Keys(s.of)), func(a, b uint64) int { return cmp.Compare(s.of[a].used, s.of[b].used) }))
		}
		p = &span{}
		s.of[origin] = p
	}
	s.uses++
	p.used = s.uses
	return p
}

func (p *span) at(word uint64) uint64 {
	if p.words == nil { // only what is forgotten was told
		return 0
	}
	return p.words[word%uint64(len(p.words))]
}

func bit(number uint64) uint64 { return 1 << (number % wordBits) }

func (p *span) add(number uint64) {
	word := number / wordBits
	if number < p.forgotten || !p.reach(word) {
		p.forgotten = max(p.forgotten, number+1)
		return
	}
	p.words[word%uint64(len(p.words))] |= bit(number)
}

// reach makes the word one of those remembered, and forgets the lowest ones
// where there is no room. It reports false if the word is too low itself.
func (p *span) reach(word uint64) bool {
	switch {
	case p.words == nil:
		p.words = make([]uint64, minWords)
		p.low, p.high = word, word
	case word > p.high:
		p.grow(word - p.low + 1)
		p.drop(word)
		p.high = word
	case word < p.low:
		if p.high-word >= maxWords {
			return false
		}
		p.grow(p.high - word + 1)
		p.low = word
	}
	return true
}

// grow makes room for n words, up to the most.
func (p *span) grow(n uint64) {
	size := uint64(len(p.words))
	for size < n && size < maxWords {
		size *= 2
	}
	if size == uint64(len(p.words)) {
		return
	}
	words := make([]uint64, size)
	for word := p.low; word <= p.high; word++ {
		words[word%size] = p.at(word)
	}
	p.words = words
}

// drop forgets the lowest words, until there is room for the word above.
func (p *span) drop(word uint64) {
	size := uint64(len(p.words))
	for ; p.low <= p.high && word-p.low >= size; p.low++ {
		if p.at(p.low) != 0 {
			p.forgotten = (p.low + 1) * wordBits
			p.words[p.low%size] = 0
		}
	}
	if p.low > p.high {
		p.low = word
	}
}
