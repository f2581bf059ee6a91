package simulate

import (
	"cmp"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Recorded is a workload whose requests were recorded at a gateway: their times, sizes and tenants are known, but not
// the instances.
type Recorded struct {
	Limits core.Config
	// Models are the requested models. Requests may be in any order.
	Models   []RecordedModel
	Requests []RecordedRequest
	// Each of the Devices has Instances instances of each model or, if that is 0, as many as the model's
	// configuration says.
	Devices, Instances int
}

// RecordedModel is a model and the kind of device on which it runs.
type RecordedModel struct {
	Config *modelconfig.Config
	Kind   string
}

// RecordedRequest is a request at an offset from the start of the recording.
type RecordedRequest struct {
	Offset  time.Duration
	Model   int // index into Models
	Request Arrival
	// Deadline is how long after its arrival the client stops waiting; 0 is never.
	Deadline time.Duration
}

// Workload returns the workload.
func (r *Recorded) Workload() *Workload {
	w := &Workload{Limits: r.Limits, Changes: []Change{{begin, core.Event{Kind: core.BecomeLeader, Epoch: 1, Until: begin}}}}
	for i := range r.Models {
		c := r.Models[i].Config
		model := core.Model{Ref: infer.ModelRef{Name: c.Name, Version: 1, Generation: 1}, Config: c}
		w.Models = append(w.Models, model)
		w.Changes = append(w.Changes, Change{begin, core.Event{Kind: core.Configure, Model: &model}})
	}
	w.pool(begin, max(r.Devices, 1),
		func(m int) int { return cmp.Or(r.Instances, InstancesOf(r.Models[m].Config)) },
		func(m int) string { return r.Models[m].Kind })
	for i := range r.Requests {
		q := &r.Requests[i]
		a := q.Request
		a.At, a.Model, a.Origin = begin.Add(q.Offset), int32(q.Model), 1 //nolint:gosec // few models
		if q.Deadline > 0 {
			a.Deadline = a.At.Add(q.Deadline)
		}
		w.Arrivals = append(w.Arrivals, a)
	}
	slices.SortStableFunc(w.Arrivals, func(a, b Arrival) int { return cmp.Compare(a.At, b.At) })
	return w
}

// InstancesOf returns how many instances of a model a device has by the model's configuration: at least one.
func InstancesOf(c *modelconfig.Config) int {
	n := 0
	for _, g := range c.Groups {
		if !g.Passive {
			n += g.CountOn(modelconfig.KindCPU)
		}
	}
	return max(n, 1)
}
