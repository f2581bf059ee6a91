package worker

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBackendsAreThoseThatOpen(t *testing.T) {
	open := newEngines(Default(), Deps{}).open
	if diff := cmp.Diff(slices.Sorted(maps.Keys(open)), Backends()); diff != "" {
		t.Errorf("backends (-open +named):\n%s", diff)
	}
}
