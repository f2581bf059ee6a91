package dispatcher

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// sequenceName names a sequence, as clients do.
type sequenceName struct {
	model infer.ModelRef
	id    uint64
	key   string
}

func nameOf(r *infer.Request) (name sequenceName, ok bool) {
	return sequenceName{r.Model, r.Sequence.ID, r.Sequence.Key}, r.Sequence.ID != 0 || r.Sequence.Key != ""
}

// joinSequence puts an entry behind those that its sequence has. The caller holds
// mu.
func (d *Dispatcher) joinSequence(e *entry) {
	if name, ok := nameOf(e.request); ok {
		d.sequences[name] = append(d.sequences[name], e)
	}
}

func (d *Dispatcher) leaveSequence(e *entry) {
	name, ok := nameOf(e.request)
	if !ok {
		return
	}
	list := slices.DeleteFunc(d.sequences[name], func(other *entry) bool { return other == e })
	if d.sequences[name] = list; len(list) == 0 {
		delete(d.sequences, name)
	}
}

// breakSequence has those that follow on an entry in its sequence not be submitted
// again, to a scheduler that would not know that they run on a state without it. The
// scheduler that has them knows what becomes of them. The caller holds mu.
func (d *Dispatcher) breakSequence(e *entry) {
	name, _ := nameOf(e.request)
	list := d.sequences[name]
	for _, later := range list[slices.Index(list, e)+1:] {
		if later.request.Sequence.Start {
			return
		}
		later.broken = true
	}
}

func sequenceLost(r *infer.Request) *errs.Error {
	return errs.New(errs.SequenceLost, "a request before it in sequence %s has failed, and the scheduler that knew of it is gone", r.Sequence.CorrelationID()).
		WithModel(r.Model.Name)
}
