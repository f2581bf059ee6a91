package classify_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/classify"
)

// The classes are the head of the sorted row, whatever the scores and however
// many are wanted.
func TestClassesAreTheHeadOfTheSortedRow(t *testing.T) {
	t.Run("FP64", func(t *testing.T) {
		checkHead(t, tensor.FP64, rapid.OneOf(rapid.SampledFrom([]float64{0, 1, -1, math.Inf(-1)}), rapid.Float64()),
			func(v float64) string { return fmt.Sprintf("%f", v) })
	})
	t.Run("INT32", func(t *testing.T) {
		checkHead(t, tensor.Int32, rapid.OneOf(rapid.Int32Range(-2, 2), rapid.Int32()),
			func(v int32) string { return strconv.Itoa(int(v)) })
	})
	t.Run("UINT64", func(t *testing.T) {
		checkHead(t, tensor.Uint64, rapid.Uint64(), func(v uint64) string { return strconv.FormatUint(v, 10) })
	})
}

func checkHead[T cmp.Ordered](t *testing.T, d tensor.Datatype, values *rapid.Generator[T], text func(T) string) {
	rapid.Check(t, func(rt *rapid.T) {
		rows, width := rapid.IntRange(1, 3).Draw(rt, "rows"), rapid.IntRange(1, 40).Draw(rt, "width")
		k := rapid.IntRange(1, 45).Draw(rt, "k")
		all := rapid.SliceOfN(values, rows*width, rows*width).Draw(rt, "scores")
		var want []string
		for row := range slices.Chunk(all, width) {
			classes := make([]int, width)
			for i := range classes {
				classes[i] = i
			}
			slices.SortStableFunc(classes, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
			for _, class := range classes[:min(k, width)] {
				want = append(want, fixed(text(row[class]))+":"+strconv.Itoa(class))
			}
		}
		p := response(d, tensor.Shape{int64(rows), int64(width)}, bytesOf(t, all))
		if err := classify.Apply(model(d, true), []classify.Output{{Name: "OUT", Classes: uint64(k)}}, p); err != nil {
			rt.Fatal(err)
		}
		if got := elements(t, &p.Outputs[0]); !slices.Equal(got, want) {
			rt.Errorf("%v gives %q, want %q", all, got, want)
		}
	})
}

// fixed writes the infinities as C does.
func fixed(text string) string {
	switch text {
	case "+Inf":
		return "inf"
	case "-Inf":
		return "-inf"
	}
	return text
}
