package view

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/state"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// State is the latest content of the buckets. It is pure: the watcher applies changes and takes snapshots. A
// single goroutine owns it.
//
// The cost of a change depends only on its own model; a snapshot also lists all models.
type State struct {
	revision uint64 // of the bucket models
	// workersRevision and instancesRevision are the revisions of these buckets.
	workersRevision, instancesRevision uint64
	models                             map[string]*model // by key
	workers                            map[string]*worker
	// runs are the instances of each model, by model key and then by worker.
	runs map[string]map[string]*nereidv1.InstancesValue
	// built are the models of the last snapshot, and dirty the keys that have changed since.
	built map[string]*core.Model
	dirty map[string]bool
	// complete is the revision of the bucket models at which the registry's
	// first scan is complete; 0 while it is unknown.
	complete uint64
	// synced never becomes false again: later leaders only change models.
	synced bool
}

// model is a model's value and the configurations of its loaded versions.
type model struct {
	value   *nereidv1.ModelValue
	problem string
	configs map[loadedVersion]*modelconfig.Config
	// contents are the content names of these versions.
	contents map[loadedVersion]string
}

// worker is a worker, with or without a lease.
type worker struct {
	// epoch is the epoch of its lease; reports under another epoch are ignored. 0 means no lease.
	epoch uint64
	// leaseExpired says that the lease of that epoch has expired, but the worker's stream is still up.
	leaseExpired bool
	models       map[string]bool // the models that it reports, by key
}

// loadedVersion is one generation of a version.
type loadedVersion struct {
	version    int64
	generation uint64
}

// NewState returns a state without models and workers.
func NewState() *State {
	return &State{
		models: make(map[string]*model), workers: make(map[string]*worker), runs: make(map[string]map[string]*nereidv1.InstancesValue),
		built: make(map[string]*core.Model), dirty: make(map[string]bool),
	}
}

// SetModel sets the value of a model's key at a revision of its bucket; nil deletes it.
func (s *State) SetModel(key string, v *nereidv1.ModelValue, revision uint64) {
	s.revision = max(s.revision, revision)
	s.dirty[key] = true
	if v == nil {
		delete(s.models, key)
		return
	}
	m := &model{value: v, problem: v.GetProblem(), configs: make(map[loadedVersion]*modelconfig.Config), contents: make(map[loadedVersion]string)}
	if before := s.models[key]; before != nil {
		maps.Copy(m.configs, before.configs)
		maps.Copy(m.contents, before.contents)
	}
	s.models[key] = m
	if m.problem != "" {
		return
	}
	if err := m.setConfig(v.GetConfig(), v.GetVersions(), v.GetClassLabels()); err != nil {
		m.problem = errs.From(err).Msg
	}
	// Last, because a generation in both lists serves with this configuration.
	if err := m.setConfig(v.GetPrevious().GetConfig(), v.GetPrevious().GetVersions(), v.GetPrevious().GetClassLabels()); err != nil {
		m.problem = errs.From(err).Msg
	}
}

// setConfig sets the configuration of versions. A loaded generation may get a different configuration that
// needs no reload, for example a new instance count.
func (m *model) setConfig(config *inference.ModelConfig, versions []*nereidv1.ModelVersion, labels map[string]*nereidv1.ClassLabels) error {
	if len(versions) == 0 {
		return nil // not loaded: there is nothing to read
	}
	c, err := modelconfig.FromProto(config)
	if err != nil {
		return err
	}
	if c, err = labeled(c, labels); err != nil {
		return err
	}
	content, err := proto.MarshalOptions{Deterministic: true}.Marshal(config)
	if err != nil {
		return err
	}
	for _, v := range versions {
		loaded := loadedVersion{v.GetVersion(), v.GetGeneration()}
		m.configs[loaded], m.contents[loaded] = c, contentOf(v.GetDigest(), content)
	}
	return nil
}

// contentOf names the content of files with a digest that are served with a configuration, for
// [core.Version.Content].
func contentOf(digest string, config []byte) string {
	if digest == "" {
		return ""
	}
	sum := sha256.Sum256(append(fmt.Appendf(nil, "%d %s ", len(digest), digest), config...))
	return hex.EncodeToString(sum[:])
}

func labeled(c *modelconfig.Config, packed map[string]*nereidv1.ClassLabels) (*modelconfig.Config, error) {
	labels := make(map[string][]string, len(packed))
	for output, p := range packed {
		var err error
		if labels[output], err = modelconfig.UnpackLabels(p.GetGzip()); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "the class labels of output '%s' of model '%s' cannot be read: %v", output, c.Name, err)
		}
	}
	return c.WithLabels(func(output string) []string { return labels[output] }), nil
}

// SetRevision records up to which revision the bucket models has been read.
func (s *State) SetRevision(revision uint64) { s.revision = max(s.revision, revision) }

// SetWorker sets a worker's lease at a revision of the bucket workers; nil
// removes the worker with its instances.
func (s *State) SetWorker(id string, v *nereidv1.WorkerValue, revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
	w := s.worker(id)
	w.leaseExpired = false
	if w.epoch != v.GetEpoch() {
		w.epoch = v.GetEpoch()
		maps.Copy(s.dirty, w.models)
	}
	s.dropEmpty(id)
}

// Epoch returns the epoch of a worker's lease, or 0 without a lease.
func (s *State) Epoch(id string) uint64 {
	if w := s.workers[id]; w != nil {
		return w.epoch
	}
	return 0
}

// SetLeaseExpired records at a revision of the bucket workers that a worker's
// lease has expired while its stream is up. Its instances keep serving.
func (s *State) SetLeaseExpired(id string, revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
	if w := s.workers[id]; w != nil {
		w.leaseExpired = true
	}
}

// DropExpired removes a worker whose stream has ended, unless the worker or a
// later incarnation has a lease again.
func (s *State) DropExpired(id string, epoch uint64) {
	if w := s.workers[id]; w != nil && w.leaseExpired && w.epoch == epoch {
		s.SetWorker(id, nil, s.workersRevision)
	}
}

// SetInstances sets a worker's instances of a key's model at a revision of the bucket instances; nil removes
// them.
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
		s.dropEmpty(id)
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

// dropEmpty removes a worker that has neither a lease nor instances.
func (s *State) dropEmpty(id string) {
	if w := s.workers[id]; w.epoch == 0 && len(w.models) == 0 {
		delete(s.workers, id)
	}
}

// sameReport compares the fields that snapshots use.
func sameReport(a, b *nereidv1.WorkerVersion) bool {
	return loadedVersionOf(a) == loadedVersionOf(b) && reportOf(a) == reportOf(b)
}

func loadedVersionOf(v *nereidv1.WorkerVersion) loadedVersion {
	return loadedVersion{v.GetModel().GetVersion(), v.GetModel().GetGeneration()}
}

// SetWorkersRevision records up to which revision the bucket workers has been read.
func (s *State) SetWorkersRevision(revision uint64) {
	s.workersRevision = max(s.workersRevision, revision)
}

// SetInstancesRevision records up to which revision the bucket instances has been read.
func (s *State) SetInstancesRevision(revision uint64) {
	s.instancesRevision = max(s.instancesRevision, revision)
}

// Observed returns the revisions of the buckets workers and instances that snapshots reflect.
func (s *State) Observed() (workers, instances uint64) { return s.workersRevision, s.instancesRevision }

// SetComplete sets the revision of the bucket models at which the registry's
// first scan is complete.
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

// report is the best state of a loaded version that workers report.
type report struct {
	state infer.InstanceState
	cause string
	away  string // why none of its instances is available, although it is ready
	gpus  uint64 // bit n is set if an instance is on GPU n
}

func reportOf(v *nereidv1.WorkerVersion) report {
	r := report{state: state.InstanceOf(v.GetState()), cause: v.GetCause()}
	if cause, all := state.Away(v); all {
		r.away = cause
	}
	for _, in := range v.GetInstances() {
		if text, gpu := strings.CutPrefix(in.GetDevice(), "gpu:"); gpu {
			number, _ := strconv.ParseUint(text, 10, 6) // an impossible number is not shown
			r.gpus |= 1 << number
		}
	}
	return r
}

// observed merges the workers' reports of a key's model.
func (s *State) observed(key string) map[loadedVersion]report {
	all := make(map[loadedVersion]report)
	for id, reported := range s.runs[key] {
		if reported.GetEpoch() != s.workers[id].epoch {
			continue // from another incarnation, or without a lease
		}
		for _, v := range reported.GetVersions() {
			r, at := reportOf(v), loadedVersionOf(v)
			known, ok := all[at]
			gpus := r.gpus | known.gpus
			if !ok || better(r.state, known.state) || r.state == known.state && r.away == "" {
				known = r
			}
			known.gpus = gpus
			all[at] = known
		}
	}
	return all
}

// better orders the states of one loaded version on several workers: it is ready if it is ready anywhere, and
// failed only if it failed everywhere.
func better(a, b infer.InstanceState) bool {
	rank := [...]int{infer.Unknown: 0, infer.Unavailable: 1, infer.Unloading: 2, infer.Loading: 3, infer.Ready: 4}
	return rank[a] > rank[b]
}
