package shm

import "slices"

// space is a run of bytes that no slot uses.
type space struct{ at, size int64 }

// spaces are the free runs of a region, by their place; none touches the next.
// It is asked only when the pool has nothing left to hand out again, so it may
// walk.
type spaces struct{ list []space }

// take cuts size bytes off the first run that has as many.
func (s *spaces) take(size int64) (at int64, ok bool) {
	for i := range s.list {
		free := &s.list[i]
		if free.size < size {
			continue
		}
		at = free.at
		if free.at, free.size = free.at+size, free.size-size; free.size == 0 {
			s.list = slices.Delete(s.list, i, i+1)
		}
		return at, true
	}
	return 0, false
}

// give adds a run and joins it with its neighbors.
func (s *spaces) give(at, size int64) {
	i, _ := slices.BinarySearchFunc(s.list, at, func(f space, at int64) int { return int(min(max(f.at-at, -1), 1)) })
	s.list = slices.Insert(s.list, i, space{at, size})
	if i+1 < len(s.list) && at+size == s.list[i+1].at {
		s.list[i].size += s.list[i+1].size
		s.list = slices.Delete(s.list, i+1, i+2)
	}
	if i > 0 && s.list[i-1].at+s.list[i-1].size == at {
		s.list[i-1].size += s.list[i].size
		s.list = slices.Delete(s.list, i, i+1)
	}
}
