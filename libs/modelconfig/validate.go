package modelconfig

import (
	"cmp"
	"fmt"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// maxInstances bounds a model's groups, so that a slip of the keyboard does not
// start a million sessions.
const maxInstances = 1024

// Validate checks a normalized configuration against the rules of the format.
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
	r.validateSequence(c)
	r.validateEnsemble(c)
	r.validateBatchTensors(c)
	r.validateGroups(c)
	r.validateAccelerators(c)
	r.validateParameters(c)
	r.validatePlacement(c)
	r.validatePadding(c)
	r.validateFiles(c)
	r.validateMetricTags(c.GetMetricTags())
	r.validateMetrics(c.GetModelMetrics())
	r.validateWarmup(c)
	r.validateAgents(c)
	r.validateResponseCache(c)
	r.validateSharing(c)
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
	r.validateTotal(c.GetInstanceGroup())
	d := backends.Get(c.GetBackend())
	for i, g := range c.GetInstanceGroup() {
		at := index("instance_group", i)
		if g.GetCount() > maxInstances {
			r.invalid(at+".count", "a few instances for each device are enough", "instance group %s has count %d, more than the %d that are allowed", g.GetName(), g.GetCount(), maxInstances)
		}
		r.validateResources(at, g)
		if len(g.GetProfile()) > 0 && !d.Profiles {
			r.add(errs.Unsupported, at+".profile", "remove it", fmt.Sprintf("instance group %s of model %s and platform %s specifies profile field which is only supported for TensorRT models",
				g.GetName(), r.model, cmp.Or(c.GetPlatform(), c.GetBackend())))
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

// validateTotal bounds what the groups are together, where each is small.
func (r *report) validateTotal(groups []*inference.ModelInstanceGroup) {
	total, largest := int64(0), int32(0)
	for _, g := range groups {
		total, largest = total+int64(g.GetCount()), max(largest, g.GetCount())
	}
	if total > maxInstances && largest <= maxInstances {
		r.invalid("instance_group", "a few instances for each device are enough", "instance groups have %d instances, more than the %d that are allowed", total, maxInstances)
	}
}

func (r *report) validateGPUs(at string, g *inference.ModelInstanceGroup) {
	seen := make(map[int32]bool)
	for i, gpu := range g.GetGpus() {
		if gpu < 0 || seen[gpu] {
			r.wrong(index(at+".gpus", i), "name each GPU once, by its number from 0", "instance group %s of model %s specifies invalid or unsupported gpu id %d", g.GetName(), r.model, gpu)
		}
		seen[gpu] = true
	}
}
