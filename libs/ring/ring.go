// Package ring provides ring buffers: the most recent values of a long sequence.
package ring

import "iter"

// Ring holds a fixed number of values: a new one replaces the oldest. It is not safe for
// concurrent use.
type Ring[T any] struct {
	values []T
	next   int // the oldest, once all places are taken
	added  uint64
}

// New returns a ring of that many values; one of 0 stores none.
func New[T any](most int) Ring[T] { return Ring[T]{values: make([]T, 0, most)} }

// Add adds a value.
func (r *Ring[T]) Add(v T) {
	r.added++
	switch {
	case len(r.values) < cap(r.values):
		r.values = append(r.values, v)
	case len(r.values) > 0:
		r.values[r.next] = v
		r.next = (r.next + 1) % len(r.values)
	}
}

// All returns the values, the oldest first.
func (r *Ring[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(&r.values[(r.next+i)%len(r.values)]) {
				return
			}
		}
	}
}

// Before returns the values added before the value with a given number, the newest first, with
// their numbers, which count all values ever added, from 0. So a reader may stop and continue
// later.
func (r *Ring[T]) Before(number uint64) iter.Seq2[uint64, *T] {
	return func(yield func(uint64, *T) bool) {
		n := uint64(len(r.values))
		for at := min(number, r.added); at > r.added-n; at-- {
			behind := int(r.added - at) //nolint:gosec // less than n
			if !yield(at-1, &r.values[(r.next+len(r.values)-1-behind)%len(r.values)]) {
				return
			}
		}
	}
}
