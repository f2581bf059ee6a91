package place

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// refused is why a version is not loaded on any worker, although it fits: it would
// have instances that never run. What is ready somewhere was loaded under other
// settings, and stays.
func refused(v *Version, fit []*worker) string {
	for _, ready := range v.AssignedTo {
		if ready {
			return ""
		}
	}
	if v.Replaced || v.Refused != "" {
		return v.Refused
	}
	for _, w := range fit {
		for _, g := range v.Groups {
			if fits(g, &w.Worker) {
				if cause := beyond(g, w.Worker); cause != "" {
					return cause
				}
			}
		}
	}
	return ""
}

// beyond words, as Triton does, of what a group's executions need more than there is.
// Where anything is configured, there is nothing of what is not.
func beyond(g modelconfig.InstanceGroup, w Worker) string {
	if len(w.Resources) == 0 {
		return ""
	}
	for _, r := range g.Resources {
		count, where := uint32(0), ""
		if r.Global {
			count, _ = w.Resources.OfPool(r.Name)
		} else {
			count, _ = w.Resources.OfDevice(r.Name, int(w.Number))
			where = fmt.Sprintf(" on device %d", w.Number)
		}
		if r.Count > count {
			return fmt.Sprintf("Resource count for \"%s\" is limited to %d which will prevent scheduling of one or more model instances, "+
				"the minimum required count is %d: start the scheduler of pool %s with --rate-limit-resource=%s:%d, or lower what an execution of instance group %s needs%s",
				r.Name, count, r.Count, w.Pool, r.Name, r.Count, g.Name, where)
		}
	}
	return ""
}
