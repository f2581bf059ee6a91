package modelconfig

import (
	"path/filepath"
	"regexp"
	"slices"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// maxInstances bounds one group, so that a slip of the keyboard does not
// start a million sessions.
const maxInstances = 1024

// Validate checks a normalised configuration against the rules of the format.
// dir is the name of the model's directory. The error is as [Load]'s, with
// every problem and without lines.
func Validate(c *inference.ModelConfig, dir string) error {
	return append(validate(c, dir), missing(c, false)...).AsError(dir)
}

func validate(c *inference.ModelConfig, dir string) Problems {
	r := &report{model: c.GetName()}
	if c.GetName() != dir {
		r.wrong("name", "remove name or rename the directory",
			"unexpected directory name '%s' for model '%s', directory name must equal model name", dir, c.GetName())
	}
	if c.GetMaxBatchSize() < 0 {
		r.invalid("max_batch_size", "use 0 for a model without a batch dimension", "'max_batch_size' must be non-negative value")
	}
	r.validateEngine(c)
	r.validateVersionPolicy(c.GetVersionPolicy())
	r.validateTensors(c)
	r.validateBatching(c)
	r.validateGroups(c)
	r.validateFiles(c)
	r.validateWarmup(c)
	r.validateMetricTags(c.GetMetricTags())
	r.validateResponseCache(c)
	r.validateSupport(c)
	return r.problems
}

func (r *report) validateVersionPolicy(p *inference.ModelVersionPolicy) {
	if latest := p.GetLatest(); latest != nil && latest.GetNumVersions() == 0 {
		r.invalid("version_policy.latest.num_versions", "set it to 1 or more", "version policy 'latest' keeps no version")
	}
	specific := p.GetSpecific()
	if specific != nil && len(specific.GetVersions()) == 0 {
		r.invalid("version_policy.specific.versions", "list the versions to serve", "version policy 'specific' names no version")
	}
	for i, v := range specific.GetVersions() {
		if v < 0 {
			r.invalid(index("version_policy.specific.versions", i), "versions are directory names such as 1", "version policy 'specific' has negative version %d", v)
		}
	}
}

func (r *report) validateGroups(c *inference.ModelConfig) {
	for i, g := range c.GetInstanceGroup() {
		at := index("instance_group", i)
		if g.GetCount() > maxInstances {
			r.invalid(at+".count", "", "instance group %s has count %d, more than the %d that are allowed", g.GetName(), g.GetCount(), maxInstances)
		}
		switch g.GetKind() {
		case inference.ModelInstanceGroup_KIND_CPU, inference.ModelInstanceGroup_KIND_MODEL:
			if len(g.GetGpus()) > 0 {
				r.wrong(at+".gpus", "remove gpus or use KIND_GPU", "instance group %s of model %s has kind %s but specifies one or more GPUs", g.GetName(), r.model, g.GetKind())
			}
		case inference.ModelInstanceGroup_KIND_GPU, inference.ModelInstanceGroup_KIND_AUTO:
			r.validateGPUs(at, g)
		default:
			r.invalid(at+".kind", "use KIND_AUTO, KIND_CPU, KIND_GPU or KIND_MODEL", "instance group %s has unknown kind %d", g.GetName(), int32(g.GetKind()))
		}
	}
}

func (r *report) validateGPUs(at string, g *inference.ModelInstanceGroup) {
	for i, gpu := range g.GetGpus() {
		if gpu < 0 || slices.Contains(g.GetGpus()[:i], gpu) {
			r.wrong(index(at+".gpus", i), "name each GPU once, by its number from 0", "instance group %s of model %s specifies invalid or unsupported gpu id %d", g.GetName(), r.model, gpu)
		}
	}
}

// validateFiles keeps paths within the model's directory.
func (r *report) validateFiles(c *inference.ModelConfig) {
	const fix = "give a path within the model's directory, without .."
	if name := c.GetDefaultModelFilename(); name != "" && !filepath.IsLocal(name) {
		r.invalid("default_model_filename", fix, "default_model_filename '%s' leaves the version directory", name)
	}
	for i, out := range c.GetOutput() {
		if name := out.GetLabelFilename(); name != "" && !filepath.IsLocal(name) {
			r.invalid(index("output", i)+".label_filename", fix, "label_filename '%s' leaves the model directory", name)
		}
	}
}

func (r *report) validateMetricTags(tags map[string]string) {
	label := regexp.MustCompile(`^[a-zA-Z0-9_]+$`)
	for _, name := range sortedKeys(tags) {
		if !label.MatchString(name) {
			r.invalid("metric_tags", "use letters, digits and underscores", "metric tag '%s' cannot be a metric label", name)
		}
	}
}

func (r *report) validateResponseCache(c *inference.ModelConfig) {
	if c.GetResponseCache().GetEnable() && c.GetModelTransactionPolicy().GetDecoupled() {
		r.wrong("response_cache.enable", "disable one of the two",
			"Response Cache does not currently support model %s with 'decoupled' transaction policy", r.model)
	}
}
