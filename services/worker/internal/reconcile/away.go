package reconcile

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
)

// absences collect reports of instances that are away, not ready, or ready again, until the loop takes them. They are
// safe for concurrent use.
type absences struct {
	changed chan struct{} // has a value when something was reported

	mu   sync.Mutex
	told []absence // guarded by mu
}

// absence is an instance that is away, or back.
type absence struct {
	model    infer.ModelRef
	instance infer.InstanceID
	cause    error // nil means back
}

func newAbsences() *absences { return &absences{changed: make(chan struct{}, 1)} }

// tell reports an absence without waiting for the loop.
func (a *absences) tell(one absence) {
	a.mu.Lock()
	a.told = append(a.told, one)
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *absences) take() []absence {
	a.mu.Lock()
	defer a.mu.Unlock()
	told := a.told
	a.told = nil
	return told
}

// noteAbsences records which instances are away.
func (r *Reconciler) noteAbsences() {
	for _, one := range r.absences.take() {
		c := r.have[one.model.ID()][one.model]
		if c == nil {
			continue
		}
		for i := range c.slots {
			if c.slots[i].id == one.instance {
				c.away[one.instance] = one.cause
			}
		}
		if one.cause == nil {
			delete(c.away, one.instance)
		}
		r.touched[one.model.ID()] = true
	}
}

// awayCause returns why an instance is away, if it is. A passive instance follows the instances that the scheduler
// has: it is away if all of those are.
func (c *loadedVersion) awayCause(of slot) string {
	if !of.group.Passive {
		return causeOf(c.away[of.id])
	}
	first := ""
	for _, s := range c.slots {
		if s.group.Passive {
			continue
		}
		cause := causeOf(c.away[s.id])
		if cause == "" {
			return ""
		}
		if first == "" {
			first = cause
		}
	}
	return first
}
