package core

import (
	"slices"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// omissionInterval is the minimum time between reports of one missing output.
const omissionInterval = time.Second

// omission is an output that was missing in an ensemble's response.
type omission struct {
	ensemble infer.ModelRef
	output   string
}

// omissions reports the outputs missing in ensembles' responses, each at most once per interval.
type omissions struct {
	report func(ensemble infer.ModelRef, output string)

	mu   sync.Mutex
	last map[omission]mono.Time // guarded by mu
}

func (o *omissions) note(ensemble infer.ModelRef, output string, now mono.Time) {
	of := omission{ensemble, output}
	o.mu.Lock()
	last, before := o.last[of]
	due := !before || now.Sub(last) >= omissionInterval
	if due {
		if o.last == nil {
			o.last = make(map[omission]mono.Time)
		}
		o.last[of] = now
	}
	o.mu.Unlock()
	if due {
		o.report(ensemble, output)
	}
}

// retain forgets the models that a snapshot does not have.
func (o *omissions) retain(s *Snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for of := range o.last {
		m := s.models[of.ensemble.ID()]
		if m == nil || !slices.ContainsFunc(m.Versions, func(v *Version) bool { return v.Ref == of.ensemble }) {
			delete(o.last, of)
		}
	}
}
