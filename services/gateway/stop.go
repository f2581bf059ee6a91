package gateway

import (
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
)

// StopTimeout is how long a gateway takes at most to stop: it gives balancers notice, finishes
// requests and writes their responses, and withdraws its lease.
func (c *Config) StopTimeout() time.Duration {
	return c.exitNotice() + c.exitTimeout() + flush + bus.LeaseOf(bus.Gateways)
}
