package mono_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

func TestEarliest(t *testing.T) {
	tests := []struct{ a, b, want mono.Time }{
		{0, 0, 0}, {0, 5, 5}, {5, 0, 5}, {3, 5, 3}, {5, 3, 3},
	}
	for _, tt := range tests {
		if got := mono.Earliest(tt.a, tt.b); got != tt.want {
			t.Errorf("Earliest(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestLeft(t *testing.T) {
	if _, ok := mono.Time(0).Left(7); ok {
		t.Error("the zero time counts as a deadline")
	}
	if d, ok := mono.Time(10).Left(7); !ok || d != 3*time.Nanosecond {
		t.Errorf("Left = %v, %t, want 3ns, true", d, ok)
	}
}

func TestSystemNeverReadsZeroAndConverts(t *testing.T) {
	c := mono.New()
	a := c.Now()
	if a <= 0 {
		t.Fatalf("first reading %d, want > 0", a)
	}
	if b := c.At(time.Now()); b < a {
		t.Errorf("At(now) = %d, before the earlier reading %d", b, a)
	}
	if got := c.At(c.Wall(a)); got != a {
		t.Errorf("At(Wall(%d)) = %d", a, got)
	}
}
