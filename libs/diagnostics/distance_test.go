package diagnostics_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/diagnostics"
)

func TestDistance(t *testing.T) {
	tests := []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"http-port", "http-port", 0},
		{"http-prt", "http-port", 1},
		{"kitten", "sitting", 3},
		{"max_batchsize", "max_batch_size", 1},
	}
	for _, tt := range tests {
		if got := diagnostics.Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestDistanceIsAMetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-c]{0,6}`)
		a, b, c := word.Draw(t, "a"), word.Draw(t, "b"), word.Draw(t, "c")
		ab, ba := diagnostics.Distance(a, b), diagnostics.Distance(b, a)
		if ab != ba || (ab == 0) != (a == b) || diagnostics.Distance(a, c) > ab+diagnostics.Distance(b, c) {
			t.Fatalf("distances of %q, %q, %q are those of no metric", a, b, c)
		}
	})
}
