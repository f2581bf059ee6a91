package registry

import (
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
)

// StopTimeout is how long a registry takes at most to stop: it releases its leadership and
// withdraws its lease.
func (c *Config) StopTimeout() time.Duration {
	return releaseTimeout + bus.LeaseOf(bus.Registries)
}
