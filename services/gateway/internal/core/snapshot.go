package core

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// Snapshot is the state of all models at one revision. It is immutable; a request is resolved against a single
// snapshot.
type Snapshot struct {
	// Revision is the revision of the models bucket that the snapshot reflects.
	Revision uint64
	// Synced says that the snapshot reflects a complete scan of the registry.
	Synced  bool
	models  map[infer.ModelID]*Model
	ordered []*Model // by name
	// pools are the pools of ready versions, by name.
	pools []string
	// byName are the models that a request may mean by a name.
	byName map[string][]*Model
	// namespaced says that names are unique only within namespaces.
	namespaced bool
}

// Model is one model of the repository.
type Model struct {
	// Namespace and Name identify the model: see [infer.ModelID].
	Namespace, Name string
	// Versions are in ascending order: those that should serve and those that failed or are draining.
	Versions []*Version
	// Problem is why the model has no versions, for example an invalid configuration. It is empty if the model
	// has versions or was never loaded.
	Problem string
	// LoadFailed says that Problem is a failure to load versions.
	LoadFailed bool
	// Removed says that no repository has the model any more: it is not listed.
	Removed bool
}

// Version is one version of a model as the gateway sees it.
type Version struct {
	Ref    infer.ModelRef
	Config *modelconfig.Config
	// Content identifies the files and the configuration of the version: versions with equal content give equal
	// responses to equal requests. In a snapshot, the content of an ensemble covers its steps. It is empty if
	// unknown.
	Content string
	// Pool is the pool whose scheduler accepts the version's requests.
	Pool  string
	State infer.InstanceState
	// Cause is why the version is not ready, or "unloaded". For a ready version it is why a newer generation
	// does not serve instead.
	Cause string
	// Away is why a ready version temporarily has no instance that is available and reports ready, for example
	// because its process is restarting. Requests are still accepted.
	Away string
	// GPUs are the numbers of the GPUs that run instances of the version.
	GPUs []int32
	// Composed is what executes an ensemble whose steps are ready; it is nil for other models. [NewSnapshot]
	// sets it.
	Composed *Composed
}

// NewSnapshot returns a snapshot of models. It takes ownership of the list; a model may be in several
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

// Len returns the number of models.
func (s *Snapshot) Len() int { return len(s.models) }

// Resolve finds the version that a request names. An empty version means the highest one that is ready. Its
// errors are those of Triton's core.
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

// AllReady reports whether every version that should serve is ready: Triton's strict readiness. A model that
// could not be read has no versions and does not count.
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

// Settled reports whether the registry's scan is complete and none of its models is loading.
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

// Changes returns the versions that became ready since the previous snapshot, including those with a new
// generation, and the versions that were unloaded.
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

// unloaded reports whether a version was unloaded and no worker has it any more.
func (v *Version) unloaded() bool { return v.State == infer.Unavailable && v.Cause == CauseUnloaded }

// Models returns the models ordered by name. The caller must not change the list.
func (s *Snapshot) Models() []*Model { return s.ordered }

// Has reports whether a model is listed.
func (s *Snapshot) Has(id infer.ModelID) bool { return s.models[id] != nil }

// CauseUnloaded is the cause of a version that was unloaded on request.
const CauseUnloaded = "unloaded"

// latestVersion stands for an empty version: the highest one that is ready.
const latestVersion = -1

// ID returns the model's id.
func (m *Model) ID() infer.ModelID { return infer.ModelID{Namespace: m.Namespace, Name: m.Name} }

// ready returns the model's ready versions in ascending order; a nil model has none.
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

// loadRequested reports whether a load of the model was ever started. Requests do not see a model that is only
// in the repository, or whose configuration could not be read.
func (m *Model) loadRequested() bool { return m.LoadFailed || len(m.Versions) > 0 }

// resolve finds a ready version; for latestVersion the highest.
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

// version returns the version with a number, or nil. The model may be nil.
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

// parseVersion parses a version as clients write it. Its error texts are Triton's, including "> 0", although
// version 0 is valid.
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
