// Package place decides which worker runs how many instances of what. It is
// pure: models and workers in, the whole placement out.
//
// Every version runs on every worker whose device fits one of its instance
// groups. So the groups of a configuration are alternatives as well: one that
// fits no worker, such as that of GPUs where there are none, leaves the
// version to the others, and a version has a cause only if none of its groups
// fits. Where several do, requests go to whatever instance is idle. There is no choice between workers yet and no account of memory.
package place

import (
	"fmt"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Version is a model version that should serve.
type Version struct {
	Model  infer.ModelRef
	Groups []modelconfig.InstanceGroup
}

// Worker is a live worker: one process with one device.
type Worker struct {
	ID string
	// Kind is [modelconfig.KindCPU] or [modelconfig.KindGPU].
	Kind modelconfig.DeviceKind
	// Number is the device's.
	Number int32
}

// Group is the part of an instance group that falls to one worker.
type Group struct {
	Name       string
	Kind       modelconfig.DeviceKind
	Device     int32
	Count      int
	Passive    bool
	HostPolicy string
}

// Assigned is a version on one worker.
type Assigned struct {
	Model  infer.ModelRef
	Groups []Group
}

// Placement is what all workers should run.
type Placement struct {
	// Workers has an entry for each worker, which may be empty. The versions
	// are in the order of model, number and generation.
	Workers map[string][]Assigned
	// Unplaced says, for each version that fits no worker although there are
	// workers, why.
	Unplaced map[infer.ModelRef]string
}

// Assign places the versions on the workers. Equal arguments in any order
// give equal placements.
func Assign(versions []Version, workers []Worker) Placement {
	p := Placement{Workers: make(map[string][]Assigned), Unplaced: make(map[infer.ModelRef]string)}
	for _, w := range workers {
		p.Workers[w.ID] = nil
	}
	gpus := slices.ContainsFunc(workers, func(w Worker) bool { return w.Kind == modelconfig.KindGPU })
	for _, v := range slices.SortedFunc(slices.Values(versions), func(a, b Version) int { return a.Model.Compare(b.Model) }) {
		placed := false
		for _, w := range workers {
			if groups := fitting(v.Groups, w, gpus); len(groups) > 0 {
				p.Workers[w.ID] = append(p.Workers[w.ID], Assigned{Model: v.Model, Groups: groups})
				placed = true
			}
		}
		if !placed && len(workers) > 0 {
			p.Unplaced[v.Model] = misfit(v, gpus)
		}
	}
	return p
}

// fitting gives the groups that the worker's device can run. gpus tells
// whether any worker has a GPU.
func fitting(groups []modelconfig.InstanceGroup, w Worker, gpus bool) []Group {
	var fit []Group
	for _, g := range groups {
		if fits(g, w, gpus) {
			fit = append(fit, Group{
				Name: g.Name, Kind: kindOn(g, w), Device: w.Number, Count: g.Count, Passive: g.Passive, HostPolicy: g.HostPolicy,
			})
		}
	}
	return fit
}

func fits(g modelconfig.InstanceGroup, w Worker, gpus bool) bool {
	switch g.Kind {
	case modelconfig.KindCPU:
		return w.Kind == modelconfig.KindCPU
	case modelconfig.KindGPU:
		return w.Kind == modelconfig.KindGPU && listed(g, w)
	case modelconfig.KindAuto:
		return (w.Kind == modelconfig.KindGPU) == gpus && listed(g, w)
	}
	return true // KIND_MODEL places itself
}

func listed(g modelconfig.InstanceGroup, w Worker) bool {
	return w.Kind != modelconfig.KindGPU || len(g.GPUs) == 0 || slices.Contains(g.GPUs, w.Number)
}

// kindOn is the group's kind, decided where it was left open.
func kindOn(g modelconfig.InstanceGroup, w Worker) modelconfig.DeviceKind {
	if g.Kind == modelconfig.KindAuto {
		return w.Kind
	}
	return g.Kind
}

// misfit words why no worker fits, as Triton does for its one server.
func misfit(v Version, gpus bool) string {
	if len(v.Groups) == 0 {
		return fmt.Sprintf("model %s has no instance group", v.Model.Name)
	}
	g := v.Groups[0]
	if g.Kind == modelconfig.KindCPU {
		return fmt.Sprintf("instance group %s of model %s has kind KIND_CPU but no worker runs on a CPU: start one or use KIND_GPU", g.Name, v.Model.Name)
	}
	if !gpus {
		return fmt.Sprintf("instance group %s of model %s has kind KIND_GPU but no GPUs are available: use KIND_CPU, or add a group of it", g.Name, v.Model.Name)
	}
	return fmt.Sprintf("instance group %s of model %s specifies invalid or unsupported gpu id: no worker runs on any of GPUs %v", g.Name, v.Model.Name, g.GPUs)
}
