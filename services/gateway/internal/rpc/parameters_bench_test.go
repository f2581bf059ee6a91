package rpc

import (
	"fmt"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

// The most parameters that a request may have, all different: the time is that
// of a map, not of each with each.
func BenchmarkManyParameters(b *testing.B) {
	list := make([]infer.Parameter, 8192)
	for i := range list {
		list[i] = infer.Parameter{Key: fmt.Sprint("key", i), Value: int64(i)}
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := setParameters(list, new(infer.Request), new(bool)); err != nil {
			b.Fatal(err)
		}
	}
}
