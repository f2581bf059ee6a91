package worker

import (
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/services/worker/internal/reconcile"
)

// StopTimeout is how long a worker takes at most to stop: it waits until its models are ready elsewhere, lets
// requests finish, ends what still runs, waits until others have read what it retains, and withdraws its reports and
// its lease.
func (c *Config) StopTimeout() time.Duration {
	return c.LeaveTimeout + c.DrainTimeout + reconcile.LastWait + settleTimeout + leaveTimeout + bus.LeaseOf(bus.Workers)
}
