package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/registry/core"
)

// What reaches a core can be replayed: another core that gets the same events at the same
// times has the same effects.
func TestEqualEventsHaveEqualEffects(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(seed, lies{})
		if err := w.run(); err != nil {
			t.Fatal(err)
		}
		replayed := core.New(w.leader.config)
		for i, s := range w.leader.history {
			if _, again := take(replayed, s.at, s.event); !cmp.Equal(s.effects, again.effects) {
				diff := cmp.Diff(s.effects, again.effects)
				t.Fatalf("history %d, event %d, %T (-first +replayed):\n%s", seed, i, s.event, diff)
			}
		}
	}
}

// taken is an event that a core took, and what followed.
type taken struct {
	at      time.Time
	event   core.Event
	effects []string
}

func take(c *core.Core, at time.Time, e core.Event) (core.Effects, taken) {
	effects := c.Step(at, e)
	var lines script
	lines.describe(effects)
	return effects, taken{at, e, append(lines.lines, fmt.Sprint(effects.Wake))}
}
