package gateway

import (
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
)

// StopTimeout is the longest time a gateway takes to stop: it gives load balancers notice, finishes requests,
// writes their responses and withdraws its lease.
func (c *Config) StopTimeout() time.Duration {
	return c.exitNotice() + c.exitTimeout() + flush + bus.LeaseOf(bus.Gateways)
}
