package instance_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/instance"
)

// restarter tells what the test says.
type restarter struct {
	*engine
	away error
	tell func(backend.Condition)
}

func (r *restarter) Watch(tell func(backend.Condition)) {
	r.tell = tell
	if tell != nil && r.away != nil {
		tell(backend.Condition{Away: r.away})
	}
}

// credits are those of the grants, in order.
func (h *harness) credits() (list []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.grants {
		list = append(list, g.Credits)
	}
	return list
}

func TestInstancesThatAreAwayGetNothing(t *testing.T) {
	h := newPipelinedHarness(t, 1)
	in, dead := &restarter{engine: &engine{execute: answerAll}}, errors.New("dead")
	var told []error
	id := h.executor.Open(instance.Spec{
		Model: infer.ModelRef{Name: "m"}, Name: "m_0_0", Instance: in,
		Unready: func(_ infer.InstanceID, cause error) { told = append(told, cause) },
	})
	in.tell(backend.Condition{Away: dead})
	in.tell(backend.Condition{Away: dead}) // with another cause, say
	if diff := cmp.Diff([]int{2, -2}, h.credits()); diff != "" {
		t.Error(diff)
	}
	h.executor.Execute(h.order(1, id, 1))
	if got := <-h.refused; got != (refusal{1, errs.InstanceAway}) {
		t.Errorf("given back: %+v", got)
	}
	in.tell(backend.Condition{Unready: errors.New("not yet")})
	if diff := cmp.Diff([]int{2, -2, 2}, h.credits()); diff != "" {
		t.Error(diff)
	}
	if c := h.run(h.order(2, id, 2)); c.Outcomes[0] != infer.Succeeded {
		t.Errorf("outcome %v of an instance that is back", c.Outcomes[0])
	}
	if len(told) != 3 || !errors.Is(told[0], dead) || told[2] == nil {
		t.Errorf("told %v", told)
	}
	if h.close(id); in.tell != nil {
		t.Error("it is watched when it is closed")
	}
}

func TestInstancesMayBeAwayWhenTheyAreOpened(t *testing.T) {
	h := newHarness(t)
	in := &restarter{engine: &engine{execute: answerAll}, away: errors.New("dead")}
	id := h.executor.Open(instance.Spec{Model: infer.ModelRef{Name: "m"}, Name: "m_0_0", Instance: in})
	defer h.close(id)
	if diff := cmp.Diff([]int{1, -1}, h.credits()); diff != "" {
		t.Error(diff)
	}
}
