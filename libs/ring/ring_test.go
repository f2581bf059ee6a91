package ring_test

import (
	"slices"
	"testing"

	"github.com/nereid-serving/nereid/libs/ring"
)

func TestTheOldestGivesWay(t *testing.T) {
	for most, want := range map[int][]int{0: nil, 1: {5}, 3: {3, 4, 5}, 5: {1, 2, 3, 4, 5}, 9: {1, 2, 3, 4, 5}} {
		r := ring.New[int](most)
		for v := range 5 {
			r.Add(v + 1)
		}
		var all, backward []int
		for v := range r.All() {
			all = append(all, *v)
		}
		for number, v := range r.Before(5) {
			if backward = append(backward, *v); number != uint64(*v-1) {
				t.Errorf("value %d has number %d", *v, number)
			}
		}
		slices.Reverse(backward)
		if !slices.Equal(all, want) || !slices.Equal(backward, want) {
			t.Errorf("the last %d of 5 are %v, and backward %v", most, all, backward)
		}
	}
}

func TestReadersGoOnWhereTheyWere(t *testing.T) {
	r := ring.New[int](4)
	for v := range 6 {
		r.Add(v)
	}
	before := uint64(100)
	for number, v := range r.Before(before) { // 5 and 4
		if before = number; *v == 4 {
			break
		}
	}
	r.Add(6) // takes the place of 2
	var rest []int
	for _, v := range r.Before(before) {
		rest = append(rest, *v)
	}
	if !slices.Equal(rest, []int{3}) {
		t.Errorf("the rest is %v", rest)
	}
}
