package attach

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
)

// beats is how often within the limit a pulse beats.
const beats = 10

// Pulse notices that the process stood still: suspended, or without processor
// time. It is safe for concurrent use.
type Pulse struct {
	clock mono.Clock
	limit time.Duration
	last  atomic.Int64 // time of the last beat
	since atomic.Int64 // end of the last pause that was too long
}

// NewPulse makes a pulse that finds pauses longer than the limit.
func NewPulse(clock mono.Clock, limit time.Duration) *Pulse {
	p := &Pulse{clock: clock, limit: limit}
	p.last.Store(int64(clock.Now()))
	return p
}

// Run beats until ctx is done, and tells of each pause after it.
func (p *Pulse) Run(ctx context.Context, stoodStill func(time.Duration)) error {
	tick := time.NewTicker(p.limit / beats)
	defer tick.Stop()
	p.beat()
	for {
		select {
		case <-tick.C:
			if pause := p.beat(); pause > p.limit {
				stoodStill(pause)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// beat returns how long it was since the last one.
func (p *Pulse) beat() time.Duration {
	now := p.clock.Now()
	pause := now.Sub(mono.Time(p.last.Load()))
	if pause > p.limit {
		p.since.Store(int64(now)) // before last: nobody sees a new beat and an old end
	}
	p.last.Store(int64(now))
	return pause
}

// Fresh reports whether what was accepted at the given time was accepted since
// the last pause. It asks the clock itself: whoever goes on first after a pause
// must not wait for the pulse to notice.
func (p *Pulse) Fresh(accepted mono.Time) bool {
	last := mono.Time(p.last.Load())
	if p.clock.Now().Sub(last) > p.limit && accepted <= last.Add(p.limit) {
		return false
	}
	return int64(accepted) >= p.since.Load()
}
