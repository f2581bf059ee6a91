package core

import (
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// stepName names a step of an ensemble's content.
type stepName struct {
	ensemble infer.ModelRef
	step     int
}

// stepLimits bound how many executions of a step are under way, over all requests.
type stepLimits struct {
	mu    sync.Mutex
	under map[stepName]*stepLimit // guarded by mu
}

type stepLimit struct {
	executions int
	waiting    []*stepRequest // from the oldest
}

// begin reports whether an execution may begin. One that may not is told by its
// composition's events when it may.
func (l *stepLimits) begin(s *stepRequest, most int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.under[s.name()]
	if at == nil {
		at = &stepLimit{}
		if l.under == nil {
			l.under = make(map[stepName]*stepLimit)
		}
		l.under[s.name()] = at
	}
	if at.executions >= most {
		at.waiting = append(at.waiting, s)
		return false
	}
	at.executions++
	return true
}

// end ends an execution that has begun, and has the next one begin. One whose
// composition closes gives the place on.
func (l *stepLimits) end(of stepName) {
	if next := l.pass(of); next != nil {
		next.composition.events.put(event{step: next})
	}
}

// pass gives the place of an execution that has ended to the one that is returned, if
// any waits.
func (l *stepLimits) pass(of stepName) (next *stepRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.under[of]
	if len(at.waiting) > 0 {
		next, at.waiting = at.waiting[0], at.waiting[1:]
		return next
	}
	if at.executions--; at.executions == 0 {
		delete(l.under, of)
	}
	return nil
}

// leave ends an execution that waits. It reports false for one that may have begun.
func (l *stepLimits) leave(s *stepRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.under[s.name()]
	if at == nil {
		return false
	}
	i := slices.Index(at.waiting, s)
	if i >= 0 {
		at.waiting = slices.Delete(at.waiting, i, i+1)
	}
	return i >= 0
}

// paceWindow is how many executions of a step are looked at together.
const paceWindow = 64

// paces are how long the executions of models take at the least, with the way there and
// back, as steps have taken lately.
type paces struct {
	mu sync.Mutex
	of map[infer.ModelRef]*pace // guarded by mu
}

// pace is the least of the present and of the last window; 0 is unknown.
type pace struct {
	present, last time.Duration
	count         int
}

func (p *paces) took(ref infer.ModelRef, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.of[ref]
	if at == nil {
		at = &pace{}
		if p.of == nil {
			p.of = make(map[infer.ModelRef]*pace)
		}
		p.of[ref] = at
	}
	if at.count == paceWindow {
		at.last, at.present, at.count = at.present, 0, 0
	}
	if at.count++; at.present == 0 || d < at.present {
		at.present = d
	}
}

// least is how long an execution of a model takes at the least; 0 where none is known.
func (p *paces) least(ref infer.ModelRef) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch at := p.of[ref]; {
	case at == nil:
		return 0
	case at.last == 0 || at.present > 0 && at.present < at.last:
		return at.present
	default:
		return at.last
	}
}

// keep forgets the models that are not among those of a snapshot.
func (p *paces) keep(s *Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref := range p.of {
		m := s.models[ref.ID()]
		if m == nil || !slices.ContainsFunc(m.Versions, func(v *Version) bool { return v.Ref == ref }) {
			delete(p.of, ref)
		}
	}
}
