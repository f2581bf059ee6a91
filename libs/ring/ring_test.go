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
		for v := range r.Backward() {
			backward = append(backward, *v)
		}
		slices.Reverse(backward)
		if !slices.Equal(all, want) || !slices.Equal(backward, want) || r.Size() != most {
			t.Errorf("the last %d of 5 are %v, and backward %v", most, all, backward)
		}
	}
}
