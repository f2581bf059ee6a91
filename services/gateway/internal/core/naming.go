package core

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// addName adds a model to those that a request may mean by its name. An unloaded model yields to another with
// the same name.
func (s *Snapshot) addName(m *Model) {
	others := s.byName[m.Name]
	switch {
	case len(others) > 0 && m.unloaded():
	case len(others) == 1 && others[0].unloaded():
		s.byName[m.Name] = []*Model{m}
	default:
		s.byName[m.Name] = append(others, m)
	}
}

// lookup finds the only model that requests for a name can mean.
func (s *Snapshot) lookup(name string) (*Model, error) {
	found := s.byName[name]
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, errs.New(errs.ModelAmbiguous,
			"There are %d identifiers of model '%s' in global map, model namespace must be provided to resolve ambiguity.", len(found), name).WithModel(name)
	case s.namespaced:
		return nil, unknownModel(errs.ModelAmbiguous, infer.ModelID{Name: name}, " is not found")
	}
	return nil, unknownModel(errs.ModelNotFound, infer.ModelID{Name: name}, " is not found")
}

// current finds the version that now serves in place of a generation.
func (s *Snapshot) current(ref infer.ModelRef) (*Version, error) {
	m := s.models[ref.ID()]
	if m == nil {
		return nil, unknownModel(errs.ModelNotFound, ref.ID(), " is not found")
	}
	return m.resolve(ref.Version)
}

// unloaded reports whether the model was unloaded on request.
func (m *Model) unloaded() bool {
	return m.Problem == "" && !slices.ContainsFunc(m.Versions, func(v *Version) bool {
		return v.State != infer.Unloading && v.Cause != CauseUnloaded
	})
}

func unknownModel(reason errs.Reason, id infer.ModelID, rest string) error {
	return errs.New(reason, "Request for unknown model: '%s'%s", id, rest).WithModel(id.Name)
}
