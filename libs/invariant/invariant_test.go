package invariant_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/invariant"
)

func TestCheckPanicsOnlyWhenEnabled(t *testing.T) {
	defer func() {
		if got := recover() != nil; got != invariant.Enabled {
			t.Errorf("panicked %t, want %t", got, invariant.Enabled)
		}
	}()
	invariant.Check(true, "never shown")
	invariant.Check(false, "shown with %d", 1)
}
