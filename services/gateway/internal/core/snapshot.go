package core

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Snapshot is the state of all models at one revision. It is immutable; a request
// is decided against one snapshot from start to end.
type Snapshot struct {
	// Revision is that of the models bucket which the snapshot reflects.
	Revision uint64
	// Synced: the snapshot reflects a complete scan of the registry.
	Synced  bool
	models  map[infer.ModelID]*Model
	ordered []*Model // by name
	// pools are those of ready versions, by name.
	pools []string
	// byName are the models that a request for a name may mean.
	byName map[string][]*Model
	// namespaced says that names are unique within namespaces only.
	namespaced bool
}

// Model is one model of the repository.
type Model struct {
	// Namespace and Name are the model's: see [infer.ModelID].
	Namespace, Name string
	// Versions are in ascending order; those that should serve and those
	// that failed or drain.
	Versions []*Version
	// Problem is why the model has no versions, such as a broken
	// configuration; empty if it has, and for one that was never loaded.
	Problem string
	// LoadFailed says that the problem is that versions failed to load.
	LoadFailed bool
	// Removed says that no repository has the model any more: it is not listed.
	Removed bool
}

// Version is one version of a model as the gateway may use it.
type Version struct {
	Ref    infer.ModelRef
	Config *modelconfig.Config
	// Content names the files and the configuration of the version: versions of one
	// content give equal responses to equal requests. In a snapshot that of an ensemble
	// covers its steps'. It is empty where that is not known.
	Content string
	// Pool names the pool whose scheduler takes the version's requests.
	Pool  string
	State infer.InstanceState
	// Cause is why the version is not ready, or "unloaded"; of a ready one, why
	// a newer generation does not serve in its place.
	Cause string
	// Away is why a ready version has no instance for a while that is there and says that it
	// is ready, such as one whose process is started again. Requests are taken all the same.
	Away string
	// GPUs are the numbers of those that instances of the version are on.
	GPUs []int32
	// Composed is what executes an ensemble whose steps are ready, set by [NewSnapshot];
	// nil for other models.
	Composed *Composed
}

// NewSnapshot returns a snapshot of models. It owns the list; a model may be in several
// snapshots.
func NewSnapshot(revision uint64, synced bool, models []*Model) *Snapshot {
	s := &Snapshot{
		Revision: revision, Synced: synced, ordered: models,
		models: make(map[infer.ModelID]*Model, len(models)), byName: make(map[string][]*Model, len(models)),
	}
	slices.SortFunc(models, func(a, b *Model) int { return a.ID().Compare(b.ID()) })
	for i, m := range models {
		m = m.uncomposed()
		models[i], s.models[m.ID()] = m, m
		s.namespaced = s.namespaced || m.Namespace != ""
		if m.loadRequested() {
			s.addName(m)
		}
	}
	s.compose()
	for _, m := range models {
		for _, v := range m.Versions {
			if v.State == infer.Ready && v.Composed == nil && !slices.Contains(s.pools, v.Pool) {
				s.pools = append(s.pools, v.Pool)
			}
		}
	}
	slices.Sort(s.pools)
	return s
}

// Len is the number of models.
func (s *Snapshot) Len() int { return len(s.models) }

// Resolve finds the version that a request names. An empty version means the
// highest that is ready. The errors are those of Triton's core.
func (s *Snapshot) Resolve(model, version string) (*Version, error) {
	number, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	m, err := s.lookup(model)
	if err != nil {
		return nil, err
	}
	return m.resolve(number)
}

// AllReady reports whether every version that should serve is ready: Triton's
// strict readiness. A model that could not be read has none.
func (s *Snapshot) AllReady() bool {
	if !s.Synced {
		return false
	}
	for _, m := range s.models {
		if m.LoadFailed {
			return false
		}
		for _, v := range m.Versions {
			if v.State != infer.Ready && v.Cause != CauseUnloaded {
				return false
			}
		}
	}
	return true
}

// Settled reports whether the registry's scan is complete and no model of it is
// loading.
func (s *Snapshot) Settled() bool {
	if !s.Synced {
		return false
	}
	for _, m := range s.models {
		for _, v := range m.Versions {
			if v.State == infer.Loading || v.State == infer.Unknown {
				return false
			}
		}
	}
	return true
}

// Changes returns the versions that are ready and were not before, those with a new
// generation among them, and the versions that have been unloaded.
func (s *Snapshot) Changes(before *Snapshot) (loaded, unloaded []infer.ModelRef) {
	for _, m := range s.ordered {
		old := before.models[m.ID()]
		if old == m {
			continue
		}
		for _, v := range m.Versions {
			was := old.version(v.Ref.Version)
			switch {
			case v.State == infer.Ready && (was == nil || was.State != infer.Ready || was.Ref != v.Ref):
				loaded = append(loaded, v.Ref)
			case was != nil && v.unloaded() && !was.unloaded():
				unloaded = append(unloaded, v.Ref)
			}
		}
	}
	return loaded, unloaded
}

// unloaded reports whether a version was unloaded, and no worker has it any more.
func (v *Version) unloaded() bool { return v.State == infer.Unavailable && v.Cause == CauseUnloaded }

// Models returns the models in the order of their names. The caller must not
// change the list.
func (s *Snapshot) Models() []*Model { return s.ordered }

// Has reports whether a model is listed.
func (s *Snapshot) Has(id infer.ModelID) bool { return s.models[id] != nil }

// CauseUnloaded is the cause of a version that was unloaded on request.
const CauseUnloaded = "unloaded"

// latestVersion stands for an empty version: the highest that is ready.
const latestVersion = -1

// ID names the model.
func (m *Model) ID() infer.ModelID { return infer.ModelID{Namespace: m.Namespace, Name: m.Name} }

// ready returns the model's ready versions, ascending; a nil model has none.
func (m *Model) ready() []infer.ModelRef {
	if m == nil {
		return nil
	}
	var refs []infer.ModelRef
	for _, v := range m.Versions {
		if v.State == infer.Ready {
			refs = append(refs, v.Ref)
		}
	}
	return refs
}

// loadRequested reports whether a load of the model was ever begun; requests do
// not see one that is only in the repository, or whose configuration could not be read.
func (m *Model) loadRequested() bool { return m.LoadFailed || len(m.Versions) > 0 }

// resolve finds a version that is ready; of latestVersion the highest.
func (m *Model) resolve(number int64) (*Version, error) {
	if number == latestVersion {
		return m.latest()
	}
	v := m.version(number)
	if v == nil {
		return nil, unknownModel(errs.ModelNotFound, m.ID(), fmt.Sprintf(" version %d is not found", number))
	}
	if v.State != infer.Ready {
		return nil, unknownModel(errs.ModelNotReady, m.ID(), fmt.Sprintf(" version %d is not at ready state", number))
	}
	return v, nil
}

// version is nil if a model, which may be nil, does not have it.
func (m *Model) version(number int64) *Version {
	if m == nil {
		return nil
	}
	for _, v := range m.Versions {
		if v.Ref.Version == number {
			return v
		}
	}
	return nil
}

func (m *Model) latest() (*Version, error) {
	for _, v := range slices.Backward(m.Versions) {
		if v.State == infer.Ready {
			return v, nil
		}
	}
	return nil, unknownModel(errs.ModelNotFound, m.ID(), " has no available versions")
}

// parseVersion reads a version as a client writes it. The texts are Triton's,
// and so is that they say "> 0" while version 0 is one like any other.
func parseVersion(version string) (int64, error) {
	if version == "" {
		return latestVersion, nil
	}
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0, errs.New(errs.InvalidVersion,
			"failed to get model version from specified version string '%s' (details: stol), version should be an integral value > 0", version)
	}
	if n < 0 {
		return 0, errs.New(errs.InvalidVersion, "invalid model version specified '%s' , version should be an integral value > 0", version)
	}
	return n, nil
}
