package core

import (
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// stepName identifies a step of an ensemble's generation.
type stepName struct {
	ensemble infer.ModelRef
	step     int
}

// stepLimits limits the concurrent executions of each step, over all requests.
type stepLimits struct {
	mu    sync.Mutex
	under map[stepName]*stepLimit // guarded by mu
}

type stepLimit struct {
	executions int
	waiting    []*stepRequest // oldest first
}

// begin reports whether an execution may start now. If not, its composition receives an event when it may.
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

// end ends an execution and starts the next one that waits. If that one's composition closes meanwhile, it
// passes the slot on.
func (l *stepLimits) end(of stepName) {
	if next := l.pass(of); next != nil {
		next.composition.events.put(event{step: next})
	}
}

// pass hands the slot of an ended execution to the oldest waiting one and returns that one, or nil.
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

// leave removes an execution that waits. It returns false if the execution may have started.
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

// paceWindow is the number of executions of a step in one window.
const paceWindow = 64

// paces track the recent minimum execution time of each model as a step, including the way there and back.
type paces struct {
	mu sync.Mutex
	of map[infer.ModelRef]*pace // guarded by mu
}

// pace is the minimum of the current and of the last window; 0 means unknown.
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

// least returns a model's recent minimum execution time, or 0 if unknown.
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

// keep forgets the models that a snapshot does not have.
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
