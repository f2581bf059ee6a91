package view

import (
	"maps"
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
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
	// workersRevision is that of the bucket workers.
	workersRevision uint64
	models          map[string]*model // by key
	// workers is what each worker says of each model, by its key.
	workers map[string]map[string][]*nereidv1.WorkerVersion
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

// content is a version's loaded content.
type content struct {
	version    int64
	generation uint64
}

// NewState makes the state before anything was read.
func NewState() *State {
	return &State{
		models: make(map[string]*model), workers: make(map[string]map[string][]*nereidv1.WorkerVersion),
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

// SetWorker notes what a worker runs at a revision of the bucket workers, nil
// if it is gone.
func (s *State) SetWorker(id string, v *nereidv1.WorkerValue, revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
	before, now := s.workers[id], make(map[string][]*nereidv1.WorkerVersion)
	for _, version := range v.GetVersions() {
		key := infer.ModelID{Namespace: version.GetModel().GetNamespace(), Name: version.GetModel().GetName()}.Key()
		now[key] = append(now[key], version)
	}
	for key := range before {
		if now[key] == nil {
			s.dirty[key] = true
		}
	}
	for key, versions := range now {
		if !slices.EqualFunc(before[key], versions, sameReport) {
			s.dirty[key] = true
		}
	}
	if s.workers[id] = now; v == nil {
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

// WorkersRevision is the revision of the bucket workers that snapshots
// reflect.
func (s *State) WorkersRevision() uint64 { return s.workersRevision }

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
	for _, w := range s.workers {
		for _, v := range w[key] {
			r := report{state: stateOf(v.GetState()), cause: v.GetCause()}
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

func stateOf(s nereidv1.State) infer.InstanceState {
	switch s {
	case nereidv1.State_STATE_LOADING:
		return infer.Loading
	case nereidv1.State_STATE_READY:
		return infer.Ready
	case nereidv1.State_STATE_UNLOADING:
		return infer.Unloading
	case nereidv1.State_STATE_UNAVAILABLE:
		return infer.Unavailable
	}
	return infer.Unknown
}
