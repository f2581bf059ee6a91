package core

import (
	"fmt"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

func named(n int) []infer.Tensor {
	list := make([]infer.Tensor, n)
	for i := range list {
		list[i].Name = fmt.Sprint("input", i)
	}
	return list
}

func TestDuplicateIsTheFirstNameThatWasThereBefore(t *testing.T) {
	for _, n := range []int{2, fewInputs, fewInputs + 1, 8192} {
		list := named(n)
		if name, ok := duplicate(list); ok {
			t.Errorf("%q of %d different names is a duplicate", name, n)
		}
		list[n-1].Name = list[0].Name
		if name, ok := duplicate(list); !ok || name != "input0" {
			t.Errorf("%q, %v of %d names, want the first", name, ok, n)
		}
	}
}

// The most inputs that a request may have, all different: the time is that of
// a map, not of each with each.
func BenchmarkNamesOfManyInputs(b *testing.B) {
	list := named(8192)
	b.ReportAllocs()
	for b.Loop() {
		duplicate(list)
	}
}
