package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// steps gives the models of an ensemble's steps, each once; none of another model. A
// step without a namespace means the ensemble's own.
func steps(of infer.ModelID, config *inference.ModelConfig) (ids []infer.ModelID) {
	for _, step := range config.GetEnsembleScheduling().GetStep() {
		id := stepModel(of, step.GetModelNamespace(), step.GetModelName())
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func stepModel(of infer.ModelID, namespace, name string) infer.ModelID {
	if namespace == "" {
		namespace = of.Namespace
	}
	return infer.ModelID{Namespace: namespace, Name: name}
}

// composer holds ensembles against the models of their steps.
type composer struct {
	// config gives the configuration of a model; nil where there is none that can be
	// served.
	config func(infer.ModelID) *inference.ModelConfig
}

// check sets the problems of an ensemble that does not fit its steps, and says in its
// configuration whether it is decoupled, which follows from them. It leaves other
// models as they are.
func (c composer) check(m catalog.Model) catalog.Model {
	if m.Config.GetEnsembleScheduling() == nil {
		return m
	}
	config, err := modelconfig.FromProto(m.Config)
	if err != nil { // the scan has checked it
		return m
	}
	decoupled := false
	problems := modelconfig.CompareEnsemble(config, func(step *modelconfig.Step) *modelconfig.Config {
		of, err := modelconfig.FromProto(c.config(stepModel(m.ID(), step.Namespace, step.Model)))
		if err != nil {
			return nil
		}
		decoupled = decoupled || of.Decoupled
		return of
	})
	if circle := c.circle(m.ID(), m.Config, nil); circle != "" {
		problems = modelconfig.Problems{{
			Reason: errs.ConfigInvalid, Field: "ensemble_scheduling", Message: circle, Fix: "have no ensemble be a step of its own steps",
		}}
	}
	if len(problems) > 0 {
		m.Problems, m.Problem, m.Config, m.Versions = problems, problems.Error(), nil, nil
		return m
	}
	if decoupled && !m.Config.GetModelTransactionPolicy().GetDecoupled() {
		m.Config = proto.CloneOf(m.Config)
		m.Config.ModelTransactionPolicy = &inference.ModelTransactionPolicy{Decoupled: true}
	}
	return m
}

// circle says by which way an ensemble is a step of itself; it is empty where it is not.
func (c composer) circle(id infer.ModelID, config *inference.ModelConfig, above []infer.ModelID) string {
	if len(above) > 0 && above[0] == id {
		return "circular dependency between ensembles: " + id.Name + " -> ... -> " + above[len(above)-1].Name + " -> " + id.Name
	}
	if slices.Contains(above, id) {
		return "" // of others, which are told
	}
	above = append(slices.Clone(above), id)
	for _, step := range config.GetEnsembleScheduling().GetStep() {
		next := stepModel(id, step.GetModelNamespace(), step.GetModelName())
		if circle := c.circle(next, c.config(next), above); circle != "" {
			return circle
		}
	}
	return ""
}

// composed checks the ensembles among models that were read together, with those that
// are known for the rest.
func (l *leadership) composed(models []catalog.Model) []catalog.Model {
	c := composer{config: func(id infer.ModelID) *inference.ModelConfig {
		for i := range models {
			if models[i].ID() == id && (models[i].Config != nil || models[i].Problem != "") {
				return models[i].Config
			}
		}
		return l.known(id)
	}}
	checked := make([]catalog.Model, len(models))
	for i, m := range models {
		checked[i] = c.check(m)
	}
	return checked
}

// known is the configuration by which a model serves or is to serve; nil without.
func (l *leadership) known(id infer.ModelID) *inference.ModelConfig {
	value := l.models.entries[id.Key()].Value
	if !loaded(value) || value.GetProblem() != "" {
		return nil
	}
	return value.GetConfig()
}

// withSteps adds the models of the ensembles' steps to those of which all is read.
func withSteps(whole func(infer.ModelID) bool, models []catalog.Model) (more func(infer.ModelID) bool, added bool) {
	needed := make(map[infer.ModelID]bool)
	for i := range models {
		for _, id := range steps(models[i].ID(), models[i].Config) {
			if !whole(id) {
				needed[id], added = true, true
			}
		}
	}
	return func(id infer.ModelID) bool { return whole(id) || needed[id] }, added
}

// unloadUnused unloads what was loaded for an ensemble alone, which is unloaded, and
// what those used that go by that.
func (l *leadership) unloadUnused(ctx context.Context, ensemble *nereidv1.ModelValue) error {
	for _, id := range steps(publish.IDOf(ensemble), ensemble.GetConfig()) {
		value := l.models.entries[id.Key()].Value
		if !l.implicit[id.Key()] || l.operations.running[id.Key()] != nil || !loaded(value) || l.used(id) {
			continue
		}
		if err := l.writeValue(ctx, id.Key(), publish.Unloaded(value)); err != nil {
			return err
		}
		delete(l.implicit, id.Key())
		if err := l.unloadUnused(ctx, value); err != nil {
			return err
		}
	}
	return nil
}

// used reports whether a loaded ensemble has the model as a step.
func (l *leadership) used(id infer.ModelID) bool {
	for _, entry := range l.models.entries {
		if loaded(entry.Value) && slices.Contains(steps(publish.IDOf(entry.Value), entry.Value.GetConfig()), id) {
			return true
		}
	}
	return false
}

// loadSteps loads what an ensemble needs, as far as it is not loaded as the repositories have
// it, or returns why it cannot be.
func (l *leadership) loadSteps(ctx context.Context, m *catalog.Model, above []infer.ModelID) error {
	above = append(slices.Clone(above), m.ID())
	return each(steps(m.ID(), m.Config), func(id infer.ModelID) error {
		if slices.Contains(above, id) {
			return nil // the check reports the circle
		}
		answered, err := l.do(ctx, &operation{kind: operationLoad, id: id, above: above, done: make(chan error, 1)})
		switch {
		case !answered:
			return errs.New(errs.StateUnavailable, "another registry leads")
		case err == nil || ctx.Err() != nil:
			return err
		case errs.Of(err) == errs.LoadUnknownModel:
			return loadFailed(m.ID(), fmt.Sprintf("load failed for model '%s': ensemble %s contains models that are not available or ambiguous: %s (%s)",
				m.ID(), m.Name, id.Name, errs.From(err).Msg))
		}
		cause := strings.TrimPrefix(errs.From(err).Msg, "load failed for model '"+id.String()+"': ")
		return loadFailed(m.ID(), fmt.Sprintf("load failed for model '%s': ensemble '%s' depends on '%s' which has no loaded version. Model '%s' loading failed with error: %s",
			m.ID(), m.Name, id.Name, id.Name, cause))
	})
}
