// Package place decides which worker runs how many instances of what. It is
// pure: versions with where they are, and workers with what is used of them,
// in; the whole placement of these versions out.
//
// # Rules
//
// A version runs on as many workers as it asks for, or on every one that fits:
// whose device fits one of its instance groups, that is in its pool and carries
// its labels, and that has the memory. The groups of a configuration are
// alternatives as well: one that fits no worker, such as that of GPUs where
// there are none, leaves the version to the others. GPUs come before CPUs, which
// take what does not fit the GPUs where a group allows both.
//
// What is placed stays: a version leaves a worker only for a reason, and only
// when it is ready wherever it should be instead. Nothing that is placed gives
// way to a version that comes. A version for which there is no memory waits,
// with a cause, until some is free.
package place

import (
	"cmp"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
)

// Version is a model version that should serve.
type Version struct {
	Model  infer.ModelRef
	Groups []modelconfig.InstanceGroup
	// Backend is the name of the backend that runs it.
	Backend string
	Rules   modelconfig.Placement
	// Pool is the name of the pool whose workers run it.
	Pool string
	// Bytes is what an instance takes of a device's memory, as far as that is
	// known.
	Bytes int64
	// AssignedTo are the workers that it is assigned to, and whether it is ready there
	// and all who send requests know that.
	AssignedTo map[string]bool
	// Replaced is a version that stays where it is and comes nowhere else: it is
	// being replaced.
	Replaced bool
	// Pinned is a version that stays where it is as well: requests go there until
	// it is ready where it should be.
	Pinned bool
	// Refused is why the version is not to be loaded anywhere; none if it may be.
	// Where one is ready it stays.
	Refused string
}

// Worker is a worker: one process with one device.
type Worker struct {
	ID string
	// Kind is [modelconfig.KindCPU] or [modelconfig.KindGPU].
	Kind modelconfig.DeviceKind
	// Number is the device's.
	Number int32
	// Pool is the name of the pool that the worker is in.
	Pool   string
	Labels map[string]string
	// Budget bounds what versions may take of the device's memory, in bytes; 0
	// is no bound. Used is what others take than those that are to be placed,
	// Load how many these are.
	Budget, Used int64
	Load         int
	// Lost is whether the worker's lease has ended and that it may come back,
	// Leaving that it is about to stop, Unwell that something is wrong with its
	// device: all of them keep what they have as long as it is needed, and get
	// nothing. What can be nowhere else stays where it is not well.
	Lost, Leaving, Unwell bool
	// Lacking is why backends cannot use the worker's device, by their names.
	Lacking map[string]string
	// Resources is how much the worker's pool has of what executions share, where
	// that is configured. A version of which an instance needs more is not loaded.
	Resources resources.Counts
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

// Placement is what workers should run of the versions.
type Placement struct {
	// Workers has an entry for each worker, which may be empty. The versions
	// are in the order of model, number and generation.
	Workers map[string][]Assigned
	// Unplaced is, for each version that is on no worker although there are
	// workers, why.
	Unplaced map[infer.ModelRef]string
	// UnderReplicated is why a version is on fewer workers than it should be.
	UnderReplicated map[infer.ModelRef]string
	// WaitingForMemory are the versions of Unplaced and Short that wait for memory.
	WaitingForMemory map[infer.ModelRef]bool
	// Migrating are versions that are on more workers than they should be, until
	// they are ready where they should be.
	Migrating map[infer.ModelRef]bool
	// Open are versions that would use one more worker of their pool: those that run on every
	// worker, and those on CPUs for want of a GPU.
	Open map[infer.ModelRef]bool
}

// Assign places the versions on the workers. Equal arguments in any order
// give equal placements.
func Assign(versions []Version, workers []Worker) Placement {
	s := newState(workers)
	versions = slices.SortedFunc(slices.Values(versions), func(a, b Version) int { return a.Model.Compare(b.Model) })
	for i := range versions {
		s.countAssigned(&versions[i])
	}
	for i := range versions {
		if len(workers) > 0 {
			s.place(&versions[i])
		}
	}
	for i := range s.out.Workers {
		slices.SortFunc(s.out.Workers[i], func(a, b Assigned) int { return a.Model.Compare(b.Model) })
	}
	return s.out
}

// state is what there is to place on while versions are placed.
type state struct {
	workers []*worker // in the order of ids
	out     Placement
}

// worker is a worker with what is used of it so far.
type worker struct {
	Worker
	used int64
	load int
}

func newState(workers []Worker) *state {
	s := &state{out: Placement{
		Workers: make(map[string][]Assigned, len(workers)), Unplaced: make(map[infer.ModelRef]string), UnderReplicated: make(map[infer.ModelRef]string),
		WaitingForMemory: make(map[infer.ModelRef]bool), Migrating: make(map[infer.ModelRef]bool), Open: make(map[infer.ModelRef]bool),
	}}
	for _, w := range workers {
		s.workers = append(s.workers, &worker{Worker: w, used: w.Used, load: w.Load})
		s.out.Workers[w.ID] = nil
	}
	slices.SortFunc(s.workers, func(a, b *worker) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// countAssigned counts what a version has already.
func (s *state) countAssigned(v *Version) {
	for _, w := range s.workers {
		if _, there := v.AssignedTo[w.ID]; there {
			w.reserve(bytesNeeded(v, groups(v, w)))
		}
	}
}

func (w *worker) reserve(bytes int64) {
	w.used += bytes
	w.load++
}

// place decides about one version.
func (s *state) place(v *Version) {
	fit := s.fitting(v)
	refused := refused(v, fit)
	var chosen, short []*worker
	if refused == "" {
		chosen, short = s.choose(v, fit)
	}
	if !v.Replaced && (v.Rules.Replicas == 0 || slices.ContainsFunc(chosen, func(w *worker) bool { return cpuFallback(v, w) })) {
		s.out.Open[v.Model] = true
	}
	for _, w := range s.workers {
		_, there := v.AssignedTo[w.ID]
		switch {
		case slices.Contains(chosen, w):
			s.assign(v, w)
		case there && (w.Lost || v.Pinned || v.Replaced || s.needed(v, chosen)):
			s.assign(v, w)
			if !w.Lost && !v.Replaced {
				s.out.Migrating[v.Model] = true
			}
		case there && len(chosen) == 0 && lastResort(v, w):
			s.assign(v, w)
		}
	}
	if refused != "" {
		s.out.Unplaced[v.Model] = refused
		return
	}
	s.explain(v, chosen, short)
}

func (s *state) assign(v *Version, w *worker) {
	if list := groups(v, w); len(list) > 0 {
		s.out.Workers[w.ID] = append(s.out.Workers[w.ID], Assigned{Model: v.Model, Groups: list})
	}
}

// needed reports whether a worker that a version should leave must keep it:
// until it is ready on all that it should be on instead. If it can be nowhere
// there is nothing to wait for.
func (s *state) needed(v *Version, chosen []*worker) bool {
	return slices.ContainsFunc(chosen, func(w *worker) bool { return !v.AssignedTo[w.ID] })
}

// lastResort reports whether a version may stay on a worker that is not well: it is
// ready there and may still answer, and nowhere it surely would not.
func lastResort(v *Version, w *worker) bool { return v.AssignedTo[w.ID] && onlyUnwell(v, w) }

// onlyUnwell reports whether a version could run on a worker if that were well.
func onlyUnwell(v *Version, w *worker) bool { return w.Unwell && !w.Lost && !w.Leaving && suits(w, v) }
