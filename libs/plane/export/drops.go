package export

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/mono"
)

// maxDrops limits the number of processes for which dropped responses are remembered. All but a few of them have
// died.
const maxDrops = 4096

// drops records when responses for a process were last dropped, by its incarnation. A process that returns after it
// was gone gives up the requests that it had submitted before then; otherwise they would never end.
type drops struct {
	at    map[uint64]mono.Time
	order []uint64 // the oldest first
}

// note records that responses were dropped. Beyond the limit the oldest entries are forgotten.
func (d *drops) note(incarnation uint64, now mono.Time) {
	if d.at == nil {
		d.at = make(map[uint64]mono.Time)
	}
	if _, known := d.at[incarnation]; known {
		d.order = slices.DeleteFunc(d.order, func(other uint64) bool { return other == incarnation })
	} else if len(d.order) == maxDrops {
		delete(d.at, d.order[0])
		d.order = slices.Delete(d.order, 0, 1)
	}
	d.at[incarnation], d.order = now, append(d.order, incarnation)
}
