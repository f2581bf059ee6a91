package requests

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

// step is a submission in its sequence. Its fields are guarded by the pool's lock.
type step struct {
	of     sequenceName
	start  bool
	broken bool // one before it has failed
}

// joinSequence puts a submission behind those that its sequence has. The caller holds
// mu.
func (p *Pool) joinSequence(s *submission) {
	r := s.request
	if r.Sequence.ID == 0 && r.Sequence.Key == "" {
		return
	}
	s.step = &step{of: sequenceName{r.Model, r.Sequence.ID, r.Sequence.Key}, start: r.Sequence.Start}
	p.sequences[s.step.of] = append(p.sequences[s.step.of], s.step)
}

// leaveSequence takes a submission out of its sequence, if it has one.
func (p *Pool) leaveSequence(s *submission) {
	if s.step == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.sequences[s.step.of]
	i := slices.Index(list, s.step)
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(p.sequences, s.step.of)
		return
	}
	p.sequences[s.step.of] = list
}

// breakSequence has those that follow on a submission in its sequence not be
// submitted again, to a scheduler that would not know that they run on a state
// without it. The scheduler that has them knows what becomes of them: it returns the
// session with that; nil if there is none.
func (p *Pool) breakSequence(s *submission) Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.step == nil {
		return p.session
	}
	list := p.sequences[s.step.of]
	for _, later := range list[slices.Index(list, s.step)+1:] {
		if later.start {
			break
		}
		later.broken = true
	}
	return p.session
}

func sequenceLost(r *infer.Request) *errs.Error {
	return errs.New(errs.SequenceLost, "a request before it in sequence %s has failed, and the scheduler that knew of it is gone", r.Sequence.CorrelationID()).
		WithModel(r.Model.Name)
}
