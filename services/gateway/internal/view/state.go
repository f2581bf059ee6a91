package view

import (
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// State is the last that the buckets said. It is pure: the watcher feeds it
// and takes snapshots. It is owned by one goroutine.
//
// What a change costs depends on the model that it is about, not on how many
// there are, but for putting the snapshot's list together.
type State struct {
	revision uint64 // of the bucket models
	// workersRevision and instancesRevision are those of these buckets.
	workersRevision, instancesRevision uint64
	models                             map[string]*model // by key
	workers                            map[string]*worker
	// runs is what workers say of each model, by its key and then by worker.
	runs map[string]map[string]*nereidv1.InstancesValue
	// built are the models as the last snapshot had them, dirty those of which
	// something was said since.
	built map[string]*core.Model
	dirty map[string]bool
	// complete is the revision of the bucket models from which on it holds
	// the registry's whole scan; 0 while that is not known.
	complete uint64
	// synced stays once it is true: later leaders only change what is known.
	synced bool
}

// model is a model's value and the configurations by which contents of it
// were loaded that workers still run.
type model struct {
	value   *nereidv1.ModelValue
	problem string
	configs map[content]*modelconfig.Config
}

// worker is a worker, with or without a lease.
type worker struct {
	// epoch is that of its lease, under which what it says counts; 0 without.
	epoch uint64
	// adrift says that the lease of that epoch has ended, and the worker not.
	adrift bool
	models map[string]bool // of which it says something, by key
}

// content is a version's loaded content.
type content struct {
	version    int64
	generation uint64
}

// NewState makes the state before anything was read.
func NewState() *State {
	return &State{
		models: make(map[string]*model), workers: make(map[string]*worker), runs: make(map[string]map[string]*nereidv1.InstancesValue),
		built: make(map[string]*core.Model), dirty: make(map[string]bool),
	}
}

// SetModel notes the value of a model's key at a revision of its bucket, nil if
// it is gone.
func (s *State) SetModel(key string, v *nereidv1.ModelValue, revision uint64) {
	s.revision = max(s.revision, revision)
	s.dirty[key] = true
	if v == nil {
		delete(s.models, key)
		return
	}
	m := &model{value: v, problem: v.GetProblem(), configs: make(map[content]*modelconfig.Config)}
	if before := s.models[key]; before != nil {
		maps.Copy(m.configs, before.configs)
	}
	s.models[key] = m
	if m.problem != "" {
		return
	}
	if err := m.keep(v.GetConfig(), v.GetVersions(), v.GetClassLabels()); err != nil {
		m.problem = errs.From(err).Msg
	}
	// Last: of a content that is in both, this is what it serves with.
	if err := m.keep(v.GetPrevious().GetConfig(), v.GetPrevious().GetVersions(), v.GetPrevious().GetClassLabels()); err != nil {
		m.problem = errs.From(err).Msg
	}
}

// keep notes the configuration of versions. It replaces one that is known: a
// content's configuration changes in what does not concern its files, such as
// the number of instances.
func (m *model) keep(config *inference.ModelConfig, versions []*nereidv1.ModelVersion, labels map[string]*nereidv1.ClassLabels) error {
	if len(versions) == 0 {
		return nil // not loaded: there is nothing to read
	}
	c, err := modelconfig.FromProto(config)
	if err != nil {
		return err
	}
	if c, err = labelled(c, labels); err != nil {
		return err
	}
	for _, v := range versions {
		m.configs[content{v.GetVersion(), v.GetGeneration()}] = c
	}
	return nil
}

func labelled(c *modelconfig.Config, packed map[string]*nereidv1.ClassLabels) (*modelconfig.Config, error) {
	labels := make(map[string][]string, len(packed))
	for output, p := range packed {
		var err error
		if labels[output], err = modelconfig.UnpackLabels(p.GetGzip()); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "the class labels of output '%s' of model '%s' cannot be read: %v", output, c.Name, err)
		}
	}
	return c.WithLabels(func(output string) []string { return labels[output] }), nil
}

// SetRevision notes that nothing has changed up to a revision of the bucket
// models.
func (s *State) SetRevision(revision uint64) { s.revision = max(s.revision, revision) }

// SetWorker notes a worker's lease at a revision of the bucket workers, nil if
// it is gone: with it goes what the worker says.
func (s *State) SetWorker(id string, v *nereidv1.WorkerValue, revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
	w := s.worker(id)
	w.adrift = false
	if w.epoch != v.GetEpoch() {
		w.epoch = v.GetEpoch()
		maps.Copy(s.dirty, w.models)
	}
	s.forget(id)
}

// Epoch is that of a worker's lease; 0 without.
func (s *State) Epoch(id string) uint64 {
	if w := s.workers[id]; w != nil {
		return w.epoch
	}
	return 0
}

// SetAdrift notes at a revision of the bucket workers that a worker's lease has
// ended, and that what it says counts on.
func (s *State) SetAdrift(id string, revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
	if w := s.workers[id]; w != nil {
		w.adrift = true
	}
}

// DropAdrift notes that a worker is gone, if it has no lease again, nor has a
// later life of it.
func (s *State) DropAdrift(id string, epoch uint64) {
	if w := s.workers[id]; w != nil && w.adrift && w.epoch == epoch {
		s.SetWorker(id, nil, s.workersRevision)
	}
}

// SetInstances notes what a worker runs of a key's model at a revision of the
// bucket instances, nil if it is nothing.
func (s *State) SetInstances(id, key string, v *nereidv1.InstancesValue, revision uint64) {
	s.instancesRevision = max(s.instancesRevision, revision)
	before := s.runs[key][id]
	if before.GetEpoch() != v.GetEpoch() || !slices.EqualFunc(before.GetVersions(), v.GetVersions(), sameReport) {
		s.dirty[key] = true
	}
	if v == nil {
		if delete(s.runs[key], id); len(s.runs[key]) == 0 {
			delete(s.runs, key)
		}
		delete(s.worker(id).models, key)
		s.forget(id)
		return
	}
	if s.runs[key] == nil {
		s.runs[key] = make(map[string]*nereidv1.InstancesValue)
	}
	s.runs[key][id] = v
	s.worker(id).models[key] = true
}

func (s *State) worker(id string) *worker {
	if s.workers[id] == nil {
		s.workers[id] = &worker{models: make(map[string]bool)}
	}
	return s.workers[id]
}

// forget drops a worker of which nothing is known.
func (s *State) forget(id string) {
	if w := s.workers[id]; w.epoch == 0 && len(w.models) == 0 {
		delete(s.workers, id)
	}
}

// sameReport compares what snapshots are made of.
func sameReport(a, b *nereidv1.WorkerVersion) bool {
	return contentOf(a) == contentOf(b) && a.GetState() == b.GetState() && a.GetCause() == b.GetCause()
}

func contentOf(v *nereidv1.WorkerVersion) content {
	return content{v.GetModel().GetVersion(), v.GetModel().GetGeneration()}
}

// SetWorkersRevision and SetInstancesRevision note that nothing has changed up
// to a revision of these buckets.
func (s *State) SetWorkersRevision(revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
}

// SetInstancesRevision is described at [State.SetWorkersRevision].
func (s *State) SetInstancesRevision(revision uint64) {
	s.instancesRevision = max(s.instancesRevision, revision)
}

// Observed gives the revisions of the buckets workers and instances that
// snapshots reflect.
func (s *State) Observed() (workers, instances uint64) { return s.workersRevision, s.instancesRevision }

// SetComplete notes from which revision of the bucket models on it is whole.
func (s *State) SetComplete(revision uint64) { s.complete = revision }

// Snapshot returns the models as the gateway serves them.
func (s *State) Snapshot() *core.Snapshot {
	for key := range s.dirty {
		if m := s.models[key]; m != nil {
			s.built[key] = m.snapshot(infer.ParseModelID(key), s.observed(key))
		} else {
			delete(s.built, key)
		}
	}
	clear(s.dirty)
	models := slices.AppendSeq(make([]*core.Model, 0, len(s.built)), maps.Values(s.built))
	s.synced = s.synced || (s.complete > 0 && s.revision >= s.complete)
	return core.NewSnapshot(s.revision, s.synced, models)
}

// report is the best that the workers say of a content.
type report struct {
	state infer.InstanceState
	cause string
}

// observed sums up what the workers run of a key's model.
func (s *State) observed(key string) map[content]report {
	all := make(map[content]report)
	for id, said := range s.runs[key] {
		if said.GetEpoch() != s.workers[id].epoch {
			continue // of another life, or void
		}
		for _, v := range said.GetVersions() {
			r := report{state: state.InstanceOf(v.GetState()), cause: v.GetCause()}
			if known, ok := all[contentOf(v)]; !ok || better(r.state, known.state) {
				all[contentOf(v)] = r
			}
		}
	}
	return all
}

// better orders the states of one content on several workers: it is ready if
// it is ready anywhere, and has failed only if nobody tries any more.
func better(a, b infer.InstanceState) bool {
	rank := [...]int{infer.Unknown: 0, infer.Unavailable: 1, infer.Unloading: 2, infer.Loading: 3, infer.Ready: 4}
	return rank[a] > rank[b]
}
