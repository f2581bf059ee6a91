package modelconfig

import (
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Ensemble is the graph of a model that is composed of others: steps that give
// tensors to one another, by names of the ensemble's own.
type Ensemble struct {
	Steps []Step
	// MaxInFlight limits the concurrent executions of one step, over all requests for the
	// ensemble; 0 is no limit.
	MaxInFlight int
}

// Step is one model's part in an ensemble.
type Step struct {
	// Namespace is the model's; empty where the ensemble's own is meant.
	Namespace string
	Model     string
	// Version is -1 for the latest.
	Version int64
	// Inputs are the ensemble's tensors by the model's inputs, Outputs those by its
	// outputs.
	Inputs, Outputs map[string]string
}

func ensemble(c *inference.ModelEnsembling) *Ensemble {
	if c == nil {
		return nil
	}
	e := &Ensemble{MaxInFlight: int(c.GetMaxInflightRequests())}
	for _, s := range c.GetStep() {
		e.Steps = append(e.Steps, Step{
			Namespace: s.GetModelNamespace(), Model: s.GetModelName(), Version: s.GetModelVersion(),
			Inputs: s.GetInputMap(), Outputs: s.GetOutputMap(),
		})
	}
	return e
}
