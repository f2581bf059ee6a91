package simulate

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Workload is what a scheduler meets.
type Workload struct {
	// Limits are the core's.
	Limits core.Config
	// Models are those that are asked for, each once.
	Models []core.Model
	// Changes are the other events, in the order of their times: BecomeLeader,
	// Configure, Learned, Remove, WorkerConnected, Granted once for each instance, Retire
	// and WorkerLost.
	Changes []Change
	// Arrivals are in the order of their times.
	Arrivals []Arrival
}

// Change is an event and its time.
type Change struct {
	At    mono.Time
	Event core.Event
}

// Arrival is one request.
type Arrival struct {
	At mono.Time
	// Model is the index of its model.
	Model     int32
	Origin    uint64
	BatchSize int64
	Bytes     int64
	Priority  uint64
	// Timeout is the client's queue timeout; 0 is none.
	Timeout time.Duration
	// Deadline is when the client stops caring, Canceled when it says so; 0 is
	// never.
	Deadline, Canceled mono.Time
	// Inputs are names and shapes, where they matter to the model.
	Inputs   []infer.Tensor
	Sequence infer.Sequence
	// Tenant and Share are those that a policy gave the request.
	Tenant string
	Share  infer.Share
}

// patience is when nobody waits for the request any more; 0 is never.
func (a *Arrival) patience() mono.Time { return mono.Earliest(a.Deadline, a.Canceled) }

// pool has all instances be there from the begin on: on each device as many of each model as
// countOf gives, of the kind that kindOf gives.
func (w *Workload) pool(begin mono.Time, devices int, countOf func(model int) int, kindOf func(model int) string) {
	w.Changes = slices.DeleteFunc(w.Changes, func(c Change) bool {
		switch c.Event.Kind {
		case core.WorkerConnected, core.Granted, core.Retire, core.WorkerLost:
			return true
		}
		return false
	})
	for device := range devices {
		worker := infer.InstanceID{Worker: uint64(device + 1)}
		w.Changes = append(w.Changes, Change{begin, core.Event{Kind: core.WorkerConnected, Instance: worker, Held: &infer.Held{}}})
		slot := uint32(0)
		for m := range w.Models {
			for i := range countOf(m) {
				id := infer.InstanceID{Worker: worker.Worker, Slot: slot}
				slot++
				w.Changes = append(w.Changes, Change{begin, core.Event{Kind: core.Granted, Grant: &infer.Grant{
					Instance: id, Model: w.Models[m].Ref, Name: instanceName(w.Models[m].Config, i), Device: kindOf(m), Credits: 1,
				}}})
			}
		}
	}
	slices.SortStableFunc(w.Changes, func(a, b Change) int { return cmp.Compare(a.At, b.At) })
}

// instanceName is the name of a device's i-th instance of a model, of which a rate
// limiter knows the instance's group: the groups in their order, and the last one
// for those that the configuration has not.
func instanceName(c *modelconfig.Config, i int) string {
	name := ""
	if c != nil {
		for first, groups := 0, c.Groups; len(groups) > 0 && first <= i; groups = groups[1:] {
			name = fmt.Sprintf("%s_%d", groups[0].Name, i-first)
			first += groups[0].CountOn(modelconfig.KindCPU)
		}
	}
	return name
}

// shape is how large the rows of a request are, as the core tells them apart: the
// binary logarithm of their elements, or 0 where all rows are of one size.
func shape(c *modelconfig.Config, inputs []infer.Tensor) uint8 {
	if !slices.ContainsFunc(c.Inputs, func(in modelconfig.IO) bool { return !in.Dims.Fixed() }) {
		return 0
	}
	elements := uint64(0)
	for i := range inputs {
		dims, n := inputs[i].Shape, uint64(1)
		if c.Batches() && len(dims) > 0 {
			dims = dims[1:]
		}
		for _, d := range dims {
			n *= uint64(max(d, 0))
		}
		elements += n
	}
	return shapeOf(elements)
}

func shapeOf(elements uint64) uint8 { return uint8(bits.Len64(elements)) }
