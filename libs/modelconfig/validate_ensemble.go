package modelconfig

import (
	"fmt"
	"maps"
	"slices"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// validateEnsemble checks what can be said of an ensemble without the models
// that it is composed of.
func (r *report) validateEnsemble(c *inference.ModelConfig) {
	e := c.GetEnsembleScheduling()
	if e == nil {
		if c.GetPlatform() == platformEnsemble {
			r.wrong("platform", "add ensemble_scheduling with its steps", "ensemble scheduling must be set for ensemble '%s'", r.model)
		}
		return
	}
	if c.GetPlatform() != platformEnsemble {
		r.wrong("ensemble_scheduling", "set platform: \"ensemble\" and no backend",
			"ensemble scheduling cannot be set for model '%s' whose platform is not ensemble", r.model)
	}
	r.refuseInEnsemble("instance_group", len(c.GetInstanceGroup()) > 0)
	r.refuseInEnsemble("optimization", c.GetOptimization() != nil)
	r.refuseInEnsemble("model_warmup", len(c.GetModelWarmup()) > 0)
	if len(e.GetStep()) == 0 {
		r.wrong("ensemble_scheduling", "add a step for each model", "must specify 'step' for ensemble '%s'", r.model)
		return
	}
	for i, step := range e.GetStep() {
		r.validateStep(i, step)
	}
	r.validateFlow(c)
}

func (r *report) refuseInEnsemble(field string, used bool) {
	if used {
		r.wrong(field, "set it in the models that the ensemble is composed of", "%s should not be specified for ensemble '%s'", field, r.model)
	}
}

func (r *report) validateStep(i int, step *inference.ModelEnsembling_Step) {
	at := index("ensemble_scheduling.step", i)
	for _, f := range []struct {
		name  string
		empty bool
		fix   string
	}{
		{"model_name", step.GetModelName() == "", "name the model of this step"},
		{"input_map", len(step.GetInputMap()) == 0, "map each input of the model to a tensor of the ensemble"},
		{"output_map", len(step.GetOutputMap()) == 0, "map an output of the model to a tensor of the ensemble"},
	} {
		if f.empty {
			r.wrong(at+"."+f.name, f.fix, "must specify '%s' in step %d of ensemble '%s'", f.name, i, r.model)
		}
	}
	if step.GetModelName() == r.model {
		r.wrong(at+".model_name", "name another model", "step %d of ensemble '%s' is the ensemble itself", i, r.model)
	}
	if v := step.GetModelVersion(); v < -1 {
		r.wrong(at+".model_version", "use -1 for the latest", "step %d of ensemble '%s' has version %d", i, r.model, v)
	}
}

// validateFlow follows the ensemble's tensors: each is made once, by a step or
// as an input, and used, by a step or as an output, and outputs can be made
// from the inputs.
func (r *report) validateFlow(c *inference.ModelConfig) {
	f := flow{made: make(map[string]string), used: make(map[string]bool)}
	for i, in := range c.GetInput() {
		f.made[in.GetName()] = index("input", i)
	}
	for i, step := range c.GetEnsembleScheduling().GetStep() {
		r.follow(&f, i, step)
	}
	for i, out := range c.GetOutput() {
		f.used[out.GetName()] = true
		if f.made[out.GetName()] == "" {
			r.wrong(index("output", i), "map an output of a step to it", "ensemble output '%s' is not produced by any step of ensemble '%s'", out.GetName(), r.model)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(f.used)) {
		if f.made[t] == "" && !slices.ContainsFunc(c.GetOutput(), func(o *inference.ModelOutput) bool { return o.GetName() == t }) {
			r.wrong("ensemble_scheduling", "make it an input of the ensemble, or map an output of a step to it",
				"ensemble tensor '%s' is used but not produced in ensemble '%s'", t, r.model)
		}
	}
	for _, t := range slices.Sorted(maps.Keys(f.made)) {
		if !f.used[t] && t != "" {
			r.wrong(f.made[t], "use it in a step's input_map or as an output, or remove it", "ensemble tensor '%s' is unused in ensemble '%s'", t, r.model)
		}
	}
	r.validateOrder(c)
}

// flow is where the tensors of an ensemble come from, as fields, and which
// are used.
type flow struct {
	made map[string]string
	used map[string]bool
}

func (r *report) follow(f *flow, i int, step *inference.ModelEnsembling_Step) {
	at := index("ensemble_scheduling.step", i)
	for _, in := range sortedKeys(step.GetInputMap()) {
		f.used[step.GetInputMap()[in]] = true
	}
	for _, out := range sortedKeys(step.GetOutputMap()) {
		t := step.GetOutputMap()[out]
		if f.made[t] != "" {
			r.wrong(at+".output_map", "give it a name of its own",
				"ensemble tensor '%s' can appear in an output map only once for ensemble '%s' step %d", t, r.model, i)
		}
		f.made[t] = at + ".output_map"
	}
}

// validateOrder looks for steps that wait for one another: none of them can
// ever run.
func (r *report) validateOrder(c *inference.ModelConfig) {
	ready := make(map[string]bool)
	for _, in := range c.GetInput() {
		ready[in.GetName()] = true
	}
	waiting := c.GetEnsembleScheduling().GetStep()
	made := make(map[string]bool)
	for _, step := range waiting {
		for _, t := range step.GetOutputMap() {
			made[t] = true
		}
	}
	for {
		left := slices.DeleteFunc(slices.Clone(waiting), func(s *inference.ModelEnsembling_Step) bool {
			for _, t := range s.GetInputMap() {
				if made[t] && !ready[t] {
					return false
				}
			}
			for _, t := range s.GetOutputMap() {
				ready[t] = true
			}
			return true
		})
		if len(left) == len(waiting) {
			break
		}
		waiting = left
	}
	if len(waiting) > 0 {
		r.wrong("ensemble_scheduling", "break the circle", "circular dependency between steps of ensemble '%s': %s", r.model, fmt.Sprint(stepModels(waiting)))
	}
}

func stepModels(steps []*inference.ModelEnsembling_Step) []string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.GetModelName()
	}
	return names
}
