// Package invariant holds assertions that cost nothing in a release build and
// stop the program under the build tags invariants or race.
package invariant

import "fmt"

// Check panics with the formatted message when ok is false and assertions
// are compiled in. Guard costly conditions with [Enabled].
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant violated: " + fmt.Sprintf(format, args...))
	}
}
