// Package ring provides ring buffers: the most recent values of a long sequence.
package ring

import "iter"

// Ring holds as many values as it was made for: a new one takes the place of the oldest.
// It is not safe for concurrent use.
type Ring[T any] struct {
	values []T
	next   int // the oldest, once all places are taken
	added  uint64
}

// New makes a ring of so many values; one of 0 keeps none.
func New[T any](most int) Ring[T] { return Ring[T]{values: make([]T, 0, most)} }

// Add takes in a value.
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

// All gives the values, the oldest first.
func (r *Ring[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(&r.values[(r.next+i)%len(r.values)]) {
				return
			}
		}
	}
}

// Before gives the values that were added before the one of a number, the newest first,
// with their numbers, which count all that were ever added from 0. So a reader may stop
// and go on later where it was.
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
