package scheduler

import (
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
)

// StopTimeout is how long a scheduler takes at most to stop: it releases its pool, writes execution costs, and
// withdraws its lease.
func (c *Config) StopTimeout() time.Duration {
	return bus.LeaseOf(bus.Leaders) + costsTimeout + bus.LeaseOf(bus.Schedulers)
}
