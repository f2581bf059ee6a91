package decisionlog

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Verification is the result of replaying a log with the core of this release.
type Verification struct {
	Steps, Decisions int
	// Differs describes the first decision that differs from the log; empty if none does.
	Differs string
}

// Verify replays the events of a log in a new core, and compares each decision with the log's. It stops at the first
// difference. If the log was cut off, Verify checks what there is, and returns an error that is [ErrTruncated].
func Verify(r *Reader) (*Verification, error) {
	limits, err := r.Header.Limits()
	if err != nil {
		return nil, err
	}
	c, v := core.New(limits), new(Verification)
	var s Step
	for {
		switch err := r.Next(&s); {
		case errors.Is(err, io.EOF):
			return v, nil
		case err != nil:
			return v, err
		}
		v.Differs = difference(s.Decisions, c.Step(s.Now, &s.Event))
		v.Steps++
		v.Decisions += len(s.Decisions)
		if v.Differs != "" {
			v.Differs = fmt.Sprintf("step %d, at %v, event %v: %s", v.Steps, s.Now.Sub(r.Header.Mono), s.Event.Kind, v.Differs)
			return v, nil
		}
	}
}

// difference describes the first decision that differs.
func difference(logged []Decision, decided []core.Decision) string {
	for i := range decided {
		if i >= len(logged) {
			return fmt.Sprintf("decision %d was not logged: %s", i, describe(&decided[i], nil))
		}
		is := &decided[i]
		var units []infer.Unit
		var slots []infer.Slot
		if is.Kind == core.Dispatch {
			slots = is.Members().Slots
			for _, it := range is.Members().Items {
				units = append(units, it.Work.Unit())
			}
		}
		was := &logged[i]
		if was.Kind != is.Kind || was.Reason != is.Reason || was.Unit != is.Unit || was.Batch != is.Batch || was.Instance != is.Instance ||
			was.A != is.A || was.B != is.B || !slices.Equal(was.Units, units) || !slices.Equal(was.Slots, slots) {
			return fmt.Sprintf("decision %d was %s, and is %s", i, describe(&was.Decision, was.Units), describe(is, units))
		}
	}
	if len(logged) > len(decided) {
		return fmt.Sprintf("decision %d, %s, is not made", len(decided), describe(&logged[len(decided)].Decision, logged[len(decided)].Units))
	}
	return ""
}

// describe formats a decision with all of its details.
func describe(d *core.Decision, units []infer.Unit) string {
	text := d.Kind.String()
	if d.Reason != "" {
		text += " " + string(d.Reason)
	}
	if d.Unit != (infer.Unit{}) {
		text += " request " + d.Unit.Request.String()
	}
	if d.Batch != (infer.BatchID{}) {
		text += " batch " + d.Batch.String()
	}
	if d.Instance != (infer.InstanceID{}) {
		text += fmt.Sprintf(" on instance %d of worker %d", d.Instance.Slot, d.Instance.Worker)
	}
	for i := range units {
		text += ", " + units[i].Request.String()
	}
	return fmt.Sprintf("%s (%d, %d)", text, d.A, d.B)
}
