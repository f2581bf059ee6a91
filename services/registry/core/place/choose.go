package place

import (
	"cmp"
	"slices"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// choose gives the workers that a version should be on, of those that fit, and those that
// would have been among them if they had the memory.
func (s *state) choose(v *Version, fit []*worker) (chosen, short []*worker) {
	s.order(v, fit)
	want := s.replicasWanted(v, fit)
	last := slices.DeleteFunc(slices.Clone(fit), func(w *worker) bool { return !cpuFallback(v, w) })
	if len(last) > 0 {
		fit = slices.DeleteFunc(fit, func(w *worker) bool { return cpuFallback(v, w) })
	}
	chosen, short = s.pick(v, fit, want)
	if v.Rules.Replicas == 0 && len(chosen) > 0 {
		return chosen, short
	}
	more, lacking := s.pick(v, last, want-len(chosen))
	if chosen = append(chosen, more...); len(chosen) < want {
		return chosen, append(short, lacking...)
	}
	return chosen, nil
}

// pick takes the first workers that have the version, or the memory for it.
func (s *state) pick(v *Version, from []*worker, want int) (chosen, short []*worker) {
	for _, w := range from {
		if len(chosen) == want {
			return chosen, nil
		}
		_, there := v.AssignedTo[w.ID]
		bytes := bytesNeeded(v, groups(v, w))
		switch {
		case there:
			chosen = append(chosen, w)
		case v.Replaced:
		case w.Budget > 0 && w.used+bytes > w.Budget:
			short = append(short, w)
		default:
			w.reserve(bytes)
			chosen = append(chosen, w)
		}
	}
	return chosen, short
}

// cpuFallback reports whether a worker is one to which a version goes only for want
// of GPUs: a CPU's, for one that leaves the kind of device open.
func cpuFallback(v *Version, w *worker) bool {
	return w.Kind == modelconfig.KindCPU && !slices.ContainsFunc(v.Groups, func(g modelconfig.InstanceGroup) bool {
		return g.Kind != modelconfig.KindAuto && fits(g, &w.Worker)
	})
}

// fitting gives the workers that may run a version, memory aside.
func (s *state) fitting(v *Version) []*worker {
	var fit []*worker
	for _, w := range s.workers {
		if !w.Lost && !w.Leaving && !w.Unwell && suits(w, v) {
			fit = append(fit, w)
		}
	}
	return fit
}

// suits reports whether a worker is one that a version asks for.
func suits(w *worker, v *Version) bool {
	return w.Pool == v.Pool && hasLabels(w.Labels, v.Rules.Labels) && w.Lacking[v.Backend] == "" &&
		slices.ContainsFunc(v.Groups, func(g modelconfig.InstanceGroup) bool { return fits(g, &w.Worker) })
}

func hasLabels(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// replicasWanted is on how many of the workers that fit a version should be. One that
// is on a worker which may come back, and ready elsewhere, need not be made
// anew before it is known to be lost.
func (s *state) replicasWanted(v *Version, fit []*worker) int {
	if v.Rules.Replicas == 0 {
		return len(fit)
	}
	awaited, ready := 0, 0
	for _, w := range s.workers {
		_, there := v.AssignedTo[w.ID]
		switch {
		case there && w.Lost:
			awaited++
		case v.AssignedTo[w.ID]:
			ready++
		}
	}
	want := v.Rules.Replicas
	if ready > 0 {
		want = max(want-awaited, 1)
	}
	return min(want, len(fit))
}

// order puts first where a version is, ready or to become so, then GPUs, then
// what its rules prefer.
func (s *state) order(v *Version, fit []*worker) {
	rank := func(w *worker) int {
		ready, there := v.AssignedTo[w.ID]
		switch {
		case ready:
			return 0
		case there:
			return 1
		case w.Kind == modelconfig.KindGPU:
			return 2
		}
		return 3
	}
	prefer := 1
	if v.Rules.Pack {
		prefer = -1
	}
	slices.SortStableFunc(fit, func(a, b *worker) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), prefer*cmp.Compare(a.load, b.load), prefer*cmp.Compare(b.free(), a.free()))
	})
}

// free is what is left of a worker's budget; without one it is nothing, so that
// such workers differ in their load alone.
func (w *worker) free() int64 {
	if w.Budget == 0 {
		return 0
	}
	return w.Budget - w.used
}

// groups gives the groups of a version that a worker's device can run.
func groups(v *Version, w *worker) []Group {
	var fit []Group
	if w.Lacking[v.Backend] != "" {
		return nil
	}
	for _, g := range v.Groups {
		if fits(g, &w.Worker) {
			fit = append(fit, Group{
				Name: g.Name, Kind: kindOn(g, &w.Worker), Device: w.Number, Count: g.CountOn(kindOn(g, &w.Worker)), Passive: g.Passive, HostPolicy: g.HostPolicy,
			})
		}
	}
	return fit
}

func fits(g modelconfig.InstanceGroup, w *Worker) bool {
	switch g.Kind {
	case modelconfig.KindCPU:
		return w.Kind == modelconfig.KindCPU
	case modelconfig.KindGPU:
		return w.Kind == modelconfig.KindGPU && listed(g, w)
	case modelconfig.KindAuto:
		return listed(g, w)
	}
	return true // KIND_MODEL places itself
}

func listed(g modelconfig.InstanceGroup, w *Worker) bool {
	return w.Kind != modelconfig.KindGPU || len(g.GPUs) == 0 || slices.Contains(g.GPUs, w.Number)
}

// kindOn is the group's kind, decided where it was left open.
func kindOn(g modelconfig.InstanceGroup, w *Worker) modelconfig.DeviceKind {
	if g.Kind == modelconfig.KindAuto {
		return w.Kind
	}
	return g.Kind
}

// bytesNeeded is what a version takes of a worker's memory.
func bytesNeeded(v *Version, groups []Group) int64 {
	count := 0
	for _, g := range groups {
		count += g.Count
	}
	return v.Bytes * int64(count)
}
