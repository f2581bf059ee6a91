package core

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/gateway/internal/ensemble"
)

// compose resolves the steps of all ensembles. An ensemble is ready only if all its steps are. All steps of a
// request use the versions of one snapshot.
func (s *Snapshot) compose() {
	c := composer{snapshot: s, state: make(map[*Version]bool)}
	for _, m := range s.ordered {
		for _, v := range m.Versions {
			c.version(v)
		}
	}
}

// uncomposed returns the model itself, or a copy if any of its versions is an ensemble: an ensemble's state
// depends on the other models of a snapshot.
func (m *Model) uncomposed() *Model {
	is := func(v *Version) bool { return v.Config != nil && v.Config.Ensemble != nil }
	if !slices.ContainsFunc(m.Versions, is) {
		return m
	}
	model := *m
	model.Versions = slices.Clone(m.Versions)
	for i, v := range model.Versions {
		version := *v
		model.Versions[i] = &version
	}
	return &model
}

// composer composes each version once.
type composer struct {
	snapshot *Snapshot
	state    map[*Version]bool // false while its steps are being resolved
}

func (c *composer) version(v *Version) {
	if v.State != infer.Ready || v.Config == nil || v.Config.Ensemble == nil {
		return
	}
	done, begun := c.state[v]
	if begun && !done { // the ensemble is one of its own steps
		v.State, v.Cause = infer.Unavailable, fmt.Sprintf("the ensemble '%s' is a step of itself", v.Ref.Name)
	}
	if begun {
		return
	}
	c.state[v] = false
	if err := c.steps(v); err != nil {
		v.State, v.Cause, v.Composed = infer.Unavailable, errs.From(err).Msg, nil
		switch {
		case c.loads(v):
			v.State = infer.Loading
		case c.unloaded(v):
			v.Cause = CauseUnloaded // as in Triton: the server stays ready
		}
	}
	c.state[v] = true
}

func (c *composer) steps(v *Version) error {
	of := &Composed{versions: versions(v)}
	configs := make([]*modelconfig.Config, 0, len(v.Config.Ensemble.Steps))
	decoupled, contents := v.Config.Decoupled, []string{v.Content}
	for i := range v.Config.Ensemble.Steps {
		step := &v.Config.Ensemble.Steps[i]
		m, err := c.model(v, step)
		if err != nil {
			return unreadyStep(v, i, err)
		}
		for _, other := range m.Versions {
			c.version(other)
		}
		next, err := m.resolve(step.Version)
		if err != nil {
			return unreadyStep(v, i, err)
		}
		if next.Away != "" && v.Away == "" {
			v.Away = fmt.Sprintf("step %d, model '%s': %s", i, step.Model, next.Away)
		}
		contents = append(contents, next.Content)
		of.versions += " " + versions(next)
		of.Steps, configs = append(of.Steps, next), append(configs, next.Config)
		decoupled = decoupled || next.Config.Decoupled
	}
	v.Config = composedConfig(v.Config, configs, decoupled)
	if !slices.ContainsFunc(of.Steps, func(step *Version) bool { return step.Pool == v.Pool }) {
		v.Pool = of.Steps[0].Pool // the ensemble's own pool may have no scheduler
	}
	if v.Content = strings.Join(contents, " "); slices.Contains(contents, "") {
		v.Content = ""
	}
	next := 0
	problems := modelconfig.CompareEnsemble(v.Config, func(*modelconfig.Step) *modelconfig.Config { next++; return configs[next-1] })
	if err := problems.AsError(v.Ref.Name); err != nil {
		return err
	}
	var err error
	of.Graph, err = ensemble.New(v.Config, configs)
	v.Composed = of
	return err
}

// composedConfig returns an ensemble's configuration with what it inherits from its steps: whether it is
// decoupled, and the labels of outputs that have none of their own.
func composedConfig(c *modelconfig.Config, steps []*modelconfig.Config, decoupled bool) *modelconfig.Config {
	config := *c.WithLabels(func(output string) []string {
		if own := c.Output(output); own.Labels != nil {
			return own.Labels
		}
		for i := range c.Ensemble.Steps {
			for name, t := range c.Ensemble.Steps[i].Outputs {
				if from := steps[i].Output(name); t == output && from != nil {
					return from.Labels
				}
			}
		}
		return nil
	})
	config.Decoupled = decoupled
	return &config
}

// loads reports whether a step of an ensemble that is not ready is loading.
func (c *composer) loads(v *Version) bool {
	return slices.ContainsFunc(v.Config.Ensemble.Steps, func(step modelconfig.Step) bool {
		m, err := c.model(v, &step)
		return err == nil && slices.ContainsFunc(m.Versions, func(v *Version) bool { return v.State == infer.Loading || v.State == infer.Unknown })
	})
}

// unloaded reports whether a step of an ensemble that is not ready was unloaded on request.
func (c *composer) unloaded(v *Version) bool {
	return slices.ContainsFunc(v.Config.Ensemble.Steps, func(step modelconfig.Step) bool {
		m, err := c.model(v, &step)
		return err == nil && len(m.Versions) > 0 && !slices.ContainsFunc(m.Versions, func(v *Version) bool { return v.Cause != CauseUnloaded })
	})
}

// versions identifies the generations that execute a version: its own or, for an ensemble, also those of its
// steps.
func versions(v *Version) string {
	if v.Composed != nil {
		return v.Composed.versions
	}
	return v.Ref.ID().Key() + " " + strconv.FormatInt(v.Ref.Version, 10) + " " + strconv.FormatUint(v.Ref.Generation, 10)
}

// model finds a step's model: in the namespace that the step names; otherwise in the ensemble's own namespace,
// or anywhere if the name is unique.
func (c *composer) model(v *Version, step *modelconfig.Step) (*Model, error) {
	id := infer.ModelID{Namespace: v.Ref.Namespace, Name: step.Model}
	if step.Namespace != "" {
		id.Namespace = step.Namespace
	}
	if m := c.snapshot.models[id]; m != nil && m.loadRequested() {
		return m, nil
	}
	if step.Namespace != "" {
		return nil, unknownModel(errs.ModelNotFound, id, " is not found")
	}
	return c.snapshot.lookup(step.Model)
}

func unreadyStep(v *Version, i int, err error) error {
	return errs.Wrap(errs.ModelNotReady, err, "ensemble '%s' waits for its step %d: %s", v.Ref.Name, i, errs.From(err).Msg).WithModel(v.Ref.Name)
}
