package requests

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// sequenceName identifies a sequence by the id that its client chose.
type sequenceName struct {
	model infer.ModelRef
	id    uint64
	key   string
}

// step is a submission in its sequence. Its fields are guarded by the pool's lock.
type step struct {
	of     sequenceName
	start  bool
	broken bool // an earlier one has failed
}

// joinSequence appends a submission to its sequence. The caller holds mu.
func (p *Pool) joinSequence(s *submission) {
	r := s.request
	if r.Sequence.ID == 0 && r.Sequence.Key == "" {
		return
	}
	s.step = &step{of: sequenceName{r.Model, r.Sequence.ID, r.Sequence.Key}, start: r.Sequence.Start}
	p.sequences[s.step.of] = append(p.sequences[s.step.of], s.step)
}

// leaveSequence removes a submission from its sequence, if it has one.
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

// breakSequence prevents the later submissions of a sequence from being resubmitted, because another scheduler
// would not know that their state lacks the failed request. The scheduler that already has them knows:
// breakSequence returns the current session, or nil.
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
