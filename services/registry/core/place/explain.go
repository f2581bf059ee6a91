package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// explain returns why a version is on fewer workers than it should be.
func (s *state) explain(v *Version, chosen, short []*worker) {
	stays := slices.ContainsFunc(s.workers, func(w *worker) bool {
		_, there := v.AssignedTo[w.ID]
		return there && (w.Lost || v.Pinned || lastResort(v, w))
	})
	lost := stays && !v.Pinned && !slices.ContainsFunc(s.workers, func(w *worker) bool { return lastResort(v, w) })
	switch {
	case v.Replaced:
	case len(chosen) == 0 && stays && len(short) > 0:
		s.out.UnderReplicated[v.Model] = memoryShortage(v, short)
		s.out.WaitingForMemory[v.Model] = true
	case len(chosen) == 0 && lost: // in a moment it is back, or known to be lost
	case len(chosen) == 0 && stays:
		s.out.UnderReplicated[v.Model] = s.misfit(v)
	case len(chosen) == 0 && len(short) > 0:
		s.out.Unplaced[v.Model] = memoryShortage(v, short)
		s.out.WaitingForMemory[v.Model] = true
	case len(chosen) == 0:
		s.out.Unplaced[v.Model] = s.misfit(v)
	case len(short) > 0:
		s.out.UnderReplicated[v.Model] = memoryShortage(v, short)
		s.out.WaitingForMemory[v.Model] = true
	case len(chosen) < v.Rules.Replicas:
		s.out.UnderReplicated[v.Model] = fmt.Sprintf("model %s asks for %d workers and %d can run it: start more, or lower %s",
			v.Model.Name, v.Rules.Replicas, len(chosen), modelconfig.ReplicasKey)
	}
}

// memoryShortage words the want of memory by the worker that has most left.
func memoryShortage(v *Version, short []*worker) string {
	best := slices.MaxFunc(short, func(a, b *worker) int { return int(a.free()>>10) - int(b.free()>>10) })
	return fmt.Sprintf("model %s needs %s of memory and worker %s has %s left of %s: unload models, add a worker, or raise its --memory-budget",
		v.Model.Name, bytes(bytesNeeded(v, groups(v, best))), best.ID, bytes(max(best.free(), 0)), bytes(best.Budget))
}

func bytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// misfit words why no worker fits, as Triton does for its one server where that
// is all there is to explain.
func (s *state) misfit(v *Version) string {
	if len(v.Groups) == 0 {
		return fmt.Sprintf("model %s has no instance group", v.Model.Name)
	}
	if i := slices.IndexFunc(s.workers, func(w *worker) bool { return onlyUnwell(v, w) }); i >= 0 {
		return fmt.Sprintf("model %s could run on worker %s alone, whose device is not well: see nereid status for the cause, and repair it or add a worker", v.Model.Name, s.workers[i].ID)
	}
	there := slices.DeleteFunc(slices.Clone(s.workers), func(w *worker) bool { return w.Lost || w.Leaving })
	pool := slices.DeleteFunc(slices.Clone(there), func(w *worker) bool { return w.Pool != v.Pool })
	if len(pool) == 0 {
		return fmt.Sprintf("model %s is in pool %s, which has no worker: start one with --pool=%s, or correct %s", v.Model.Name, v.Pool, v.Pool, modelconfig.PoolKey)
	}
	fit := slices.DeleteFunc(pool, func(w *worker) bool { return !hasLabels(w.Labels, v.Rules.Labels) })
	if len(fit) == 0 {
		return fmt.Sprintf("model %s asks for workers with the labels %s, and pool %s has none: start one with --label, or correct %s",
			v.Model.Name, labels(v.Rules.Labels), v.Pool, modelconfig.LabelsKey)
	}
	for _, w := range fit {
		if cause := w.Lacking[v.Backend]; cause != "" {
			return fmt.Sprintf("model %s cannot run on the GPU of worker %s: %s", v.Model.Name, w.ID, cause)
		}
	}
	g, where := v.Groups[0], s.within(v)
	if g.Kind == modelconfig.KindCPU {
		return fmt.Sprintf("instance group %s of model %s has kind KIND_CPU but no worker runs on a CPU%s: start one or use KIND_GPU", g.Name, v.Model.Name, where)
	}
	if !slices.ContainsFunc(fit, func(w *worker) bool { return w.Kind == modelconfig.KindGPU }) {
		return fmt.Sprintf("instance group %s of model %s has kind KIND_GPU but no GPUs are available%s: use KIND_CPU, or add a group of it", g.Name, v.Model.Name, where)
	}
	return fmt.Sprintf("instance group %s of model %s specifies invalid or unsupported gpu id: no worker%s runs on any of GPUs %v", g.Name, v.Model.Name, where, g.GPUs)
}

// within is among which workers one was looked for, if not among all.
func (s *state) within(v *Version) string {
	var where string
	if slices.ContainsFunc(s.workers, func(w *worker) bool { return !w.Lost && w.Pool != v.Pool }) {
		where = " in pool " + v.Pool
	}
	if len(v.Rules.Labels) > 0 {
		where += " with the labels " + labels(v.Rules.Labels)
	}
	return where
}

func labels(wanted map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		list = append(list, key+"="+wanted[key])
	}
	return strings.Join(list, ",")
}
