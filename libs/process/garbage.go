package process

import (
	"os"
	"runtime/debug"
)

// garbage is the percentage of the heap by which it may grow before it is
// collected: the path of requests allocates little, and the rest is small.
const garbage = 400

// CollectLate has Go collect garbage less often than by its default, unless
// the environment says how often.
func CollectLate() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
}
