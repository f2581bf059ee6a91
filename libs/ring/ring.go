// Package ring keeps the last values of many.
package ring

import "iter"

// Ring holds as many values as it was made for: a new one takes the place of the oldest.
// It is not safe for concurrent use.
type Ring[T any] struct {
	values []T
	next   int // the oldest, once all places are taken
}

// New makes a ring of so many values; one of 0 keeps none.
func New[T any](most int) Ring[T] { return Ring[T]{values: make([]T, 0, most)} }

// Add takes in a value.
func (r *Ring[T]) Add(v T) {
	switch {
	case len(r.values) < cap(r.values):
		r.values = append(r.values, v)
	case len(r.values) > 0:
		r.values[r.next] = v
		r.next = (r.next + 1) % len(r.values)
	}
}

// Size is how many values the ring holds at most.
func (r *Ring[T]) Size() int { return cap(r.values) }

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

// Backward gives the values, the newest first.
func (r *Ring[T]) Backward() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range r.values {
			if !yield(&r.values[(r.next+len(r.values)-1-i)%len(r.values)]) {
				return
			}
		}
	}
}
