package catalog

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Steps gives the models of an ensemble's steps, each once; none of another model.
func Steps(of infer.ModelID, config *inference.ModelConfig) (ids []infer.ModelID) {
	for _, step := range config.GetEnsembleScheduling().GetStep() {
		if id := StepModel(of, step.GetModelNamespace(), step.GetModelName()); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// StepModel names the model of a step. Without a namespace it is in the ensemble's own.
func StepModel(of infer.ModelID, namespace, name string) infer.ModelID {
	if namespace == "" {
		namespace = of.Namespace
	}
	return infer.ModelID{Namespace: namespace, Name: name}
}

// Configs gives the configuration of a model; nil where there is none that can be served.
type Configs func(infer.ModelID) *inference.ModelConfig

// Compose compares a model, if it is an ensemble, with its steps. It returns the model with the
// problems of one that does not fit them, and states in its configuration whether it is
// decoupled, which follows from them. It returns other models as they are.
func (configs Configs) Compose(m Model) Model {
	if m.Config.GetEnsembleScheduling() == nil {
		return m
	}
	config, err := modelconfig.FromProto(m.Config)
	if err != nil { // the scan has checked it
		return m
	}
	decoupled := false
	problems := modelconfig.CompareEnsemble(config, func(step *modelconfig.Step) *modelconfig.Config {
		of, err := modelconfig.FromProto(configs(StepModel(m.ID(), step.Namespace, step.Model)))
		if err != nil {
			return nil
		}
		decoupled = decoupled || of.Decoupled
		return of
	})
	if circle := configs.circle(m.ID(), m.Config, nil); circle != "" {
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
func (configs Configs) circle(id infer.ModelID, config *inference.ModelConfig, above []infer.ModelID) string {
	if len(above) > 0 && above[0] == id {
		return "circular dependency between ensembles: " + id.Name + " -> ... -> " + above[len(above)-1].Name + " -> " + id.Name
	}
	if slices.Contains(above, id) {
		return "" // of others, which report it
	}
	above = append(slices.Clone(above), id)
	for _, step := range config.GetEnsembleScheduling().GetStep() {
		next := StepModel(id, step.GetModelNamespace(), step.GetModelName())
		if circle := configs.circle(next, configs(next), above); circle != "" {
			return circle
		}
	}
	return ""
}
