// Package status describes the whole cluster, and what of it is not
// as it should be. It is a function of what the buckets hold and the schedulers
// say.
package status

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// Roles of services.
const (
	Gateway   = "gateway"
	Registry  = "registry"
	Scheduler = "scheduler"
	worker    = "worker"
)

// poolRole is before the name of a pool in the role of its scheduler.
const poolRole = "pool."

// PoolRole is the role of a pool's scheduler.
func PoolRole(pool string) string { return poolRole + pool }

// Entry is a value with the revision of its write.
type Entry[T any] struct {
	Value    T
	Revision uint64
}

// Runs is a loaded version that a worker has.
type Runs struct {
	Worker  string
	Version *nereidv1.WorkerVersion
}

// Assigned is a loaded version that a worker should have.
type Assigned struct {
	Worker  string
	Version *nereidv1.AssignedVersion
}

// View is what a status is made of.
type View struct {
	// Models are by key.
	Models map[string]Entry[*nereidv1.ModelValue]
	// Workers are by id.
	Workers map[string]Entry[*nereidv1.WorkerValue]
	// Behind are the workers that have not applied their assignment.
	Behind   map[string]bool
	Runs     []Runs
	Assigned []Assigned
	// Lost are the workers that a loaded version is kept for although they are gone: they
	// may come back.
	Lost map[infer.ModelRef][]string
	// UnderReplicated is why loaded versions are on fewer workers than they should be, as far as
	// the reader of the state knows.
	UnderReplicated map[infer.ModelRef]string
	// Lagging are the gateways and schedulers, by id, that have not applied a revision of the
	// models in time, as far as the reader of the state knows.
	Lagging map[string]uint64
	// Services are by role and id, without the workers.
	Services map[string]map[string]Entry[*nereidv1.ServiceValue]
	// Leaders are by role.
	Leaders map[string]Entry[*nereidv1.LeaderValue]
	// Queues are those of the pools that have responded; Unreachable is, by pool,
	// why others have not.
	Queues      []*nereidv1.QueueStatus
	Unreachable map[string]string
}

// Pools are the pools that there is a model, a worker or a scheduler of, sorted.
func (s *View) Pools() []string {
	pools := make(map[string]bool)
	for _, m := range s.Models {
		pools[cmp.Or(m.Value.GetPool(), infer.DefaultPool)] = true
	}
	for _, w := range s.Workers {
		pools[cmp.Or(w.Value.GetLabels()[infer.PoolLabel], infer.DefaultPool)] = true
	}
	for role := range s.Leaders {
		if name, ok := strings.CutPrefix(role, poolRole); ok {
			pools[name] = true
		}
	}
	return slices.Sorted(maps.Keys(pools))
}

// Of returns the status of the cluster.
func Of(s *View) *nereidv1.ClusterStatus {
	c := &nereidv1.ClusterStatus{
		Services: s.services(), Leaders: s.leaders(), Models: s.models(), Workers: s.workers(), Queues: s.Queues,
	}
	slices.SortFunc(c.Queues, func(a, b *nereidv1.QueueStatus) int {
		return cmp.Or(cmp.Compare(a.GetPool(), b.GetPool()), state.RefOf(a.GetModel()).Compare(state.RefOf(b.GetModel())))
	})
	c.Problems = problems(s, c)
	return c
}

func (s *View) services() []*nereidv1.ServiceStatus {
	var list []*nereidv1.ServiceStatus
	for role, all := range s.Services {
		for id, e := range all {
			v := e.Value
			list = append(list, &nereidv1.ServiceStatus{
				Role: role, Id: id, Address: v.GetAddress(), Release: v.GetVersion(), State: v.GetState(),
				Epoch: epoch(v.GetEpoch(), e.Revision), Load: v.GetLoad(), Waiting: v.GetWaiting(), Running: v.GetRunning(),
			})
		}
	}
	for id, e := range s.Workers {
		v := e.Value
		state := cmp.Or(v.GetState(), nereidv1.State_STATE_READY)
		if v.GetLeaving() {
			state = nereidv1.State_STATE_UNLOADING
		}
		list = append(list, &nereidv1.ServiceStatus{
			Role: worker, Id: id, Address: v.GetAddress(), Release: v.GetVersion(), State: state, Epoch: epoch(v.GetEpoch(), e.Revision),
		})
	}
	slices.SortFunc(list, func(a, b *nereidv1.ServiceStatus) int {
		return cmp.Or(cmp.Compare(a.GetRole(), b.GetRole()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return list
}

// epoch is that of a lease, which does not state it in the very write that
// acquires it.
func epoch(stated, revision uint64) uint64 { return cmp.Or(stated, revision) }

func (s *View) leaders() []*nereidv1.LeaderStatus {
	var list []*nereidv1.LeaderStatus
	for _, role := range slices.Sorted(maps.Keys(s.Leaders)) {
		e := s.Leaders[role]
		list = append(list, &nereidv1.LeaderStatus{
			Role: role, Holder: e.Value.GetHolder(), Epoch: epoch(e.Value.GetEpoch(), e.Revision), Address: e.Value.GetAddress(),
		})
	}
	return list
}

func (s *View) workers() []*nereidv1.WorkerStatus {
	ready, all, models := make(map[string]uint32), make(map[string]uint32), make(map[string]uint64)
	for _, r := range s.Runs {
		n, of := instances(r.Version)
		ready[r.Worker] += n
		all[r.Worker] += of
		if of > 0 {
			models[r.Worker] += s.memoryUsed(r.Version)
		}
	}
	var list []*nereidv1.WorkerStatus
	for _, id := range slices.Sorted(maps.Keys(s.Workers)) {
		v := s.Workers[id].Value
		list = append(list, &nereidv1.WorkerStatus{
			Id: id, Device: v.GetDevice(), MemoryUsedBytes: v.GetMemoryUsedBytes() + models[id], MemoryBudgetBytes: v.GetMemoryBudgetBytes(),
			Ready: ready[id], Instances: all[id], Behind: s.Behind[id], Labels: v.GetLabels(),
			Restarts: v.GetRestarts(), LastExit: v.GetLastExit(),
		})
	}
	return list
}

// memoryUsed is what a loaded version takes of its worker's memory, in bytes: as measured,
// and no less than its files have. A small model finds room in what the process
// had already, and is then measured at nothing.
func (s *View) memoryUsed(v *nereidv1.WorkerVersion) uint64 {
	ref := state.RefOf(v.GetModel())
	files := publish.Find(s.Models[ref.ID().Key()].Value, ref).GetBytes()
	return max(v.GetMemoryBytes(), files)
}

func instances(v *nereidv1.WorkerVersion) (ready, all uint32) {
	for _, in := range v.GetInstances() {
		all++
		if in.GetState() == nereidv1.State_STATE_READY {
			ready++
		}
	}
	return ready, all
}
