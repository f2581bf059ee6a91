package modelconfig

import (
	"cmp"
	"fmt"

	"github.com/nereid-serving/nereid/libs/backends"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Normalize fills in, in place, what a configuration leaves out: name,
// backend, platform, model file, version policy, pinned memory, preferred
// batch sizes and instance groups. It checks nothing, and a second time it
// changes nothing.
func Normalize(c *inference.ModelConfig, dir Directory) {
	normalizeName(c, dir)
	if c.GetVersionPolicy().GetPolicyChoice() == nil {
		c.VersionPolicy = &inference.ModelVersionPolicy{PolicyChoice: &inference.ModelVersionPolicy_Latest_{
			Latest: &inference.ModelVersionPolicy_Latest{NumVersions: 1},
		}}
	}
	normalizeBatching(c)
	if c.GetEnsembleScheduling() == nil {
		normalizeOptimization(c)
		normalizeGroups(c)
	}
}

// normalizeName fills in who the model is and what runs it.
func normalizeName(c *inference.ModelConfig, dir Directory) {
	c.Name = cmp.Or(c.GetName(), dir.Name)
	normalizeEngine(c, dir.Files)
	if dir.pythonBased(c.GetBackend()) {
		c.Runtime = cmp.Or(c.GetRuntime(), pythonRuntime)
	}
}

func normalizeBatching(c *inference.ModelConfig) {
	b := c.GetDynamicBatching()
	if b != nil && len(b.GetPreferredBatchSize()) == 0 && c.GetMaxBatchSize() > 0 {
		b.PreferredBatchSize = []int32{c.GetMaxBatchSize()}
	}
	s := c.GetSequenceBatching()
	if s == nil {
		return
	}
	if s.GetMaxSequenceIdleMicroseconds() == 0 {
		s.MaxSequenceIdleMicroseconds = 1_000_000
	}
	if oldest := s.GetOldest(); oldest != nil && len(oldest.GetPreferredBatchSize()) == 0 && c.GetMaxBatchSize() > 0 {
		oldest.PreferredBatchSize = []int32{c.GetMaxBatchSize()}
	}
}

func normalizeOptimization(c *inference.ModelConfig) {
	if c.Optimization == nil {
		c.Optimization = new(inference.ModelOptimizationPolicy)
	}
	if c.Optimization.InputPinnedMemory == nil {
		c.Optimization.InputPinnedMemory = &inference.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
	if c.Optimization.OutputPinnedMemory == nil {
		c.Optimization.OutputPinnedMemory = &inference.ModelOptimizationPolicy_PinnedMemoryBuffer{Enable: true}
	}
}

func normalizeGroups(c *inference.ModelConfig) {
	if len(c.GetInstanceGroup()) == 0 {
		c.InstanceGroup = []*inference.ModelInstanceGroup{{Name: c.GetName()}}
	}
	for i, g := range c.GetInstanceGroup() {
		if g.GetName() == "" {
			g.Name = fmt.Sprintf("%s_%d", c.GetName(), i)
		}
		if g.GetKind() == inference.ModelInstanceGroup_KIND_AUTO {
			g.Kind = autoKind(c.GetBackend(), g)
		}
		if g.GetCount() < 1 && g.GetKind() != inference.ModelInstanceGroup_KIND_AUTO {
			g.Count = defaultCount(c.GetBackend(), g.GetKind())
		}
	}
}

// autoKind decides KIND_AUTO where the backend runs on CPUs alone. For the others it
// is decided where the instances are placed: see [InstanceGroup.CountOn] and [Config.Shown].
func autoKind(backend string, g *inference.ModelInstanceGroup) inference.ModelInstanceGroup_Kind {
	switch {
	case backends.Get(backend).GPU:
		return inference.ModelInstanceGroup_KIND_AUTO
	case len(g.GetGpus()) > 0:
		return inference.ModelInstanceGroup_KIND_GPU
	}
	return inference.ModelInstanceGroup_KIND_CPU
}

// defaultCount is 1, but for backends that gain from more on a CPU.
func defaultCount(backend string, kind inference.ModelInstanceGroup_Kind) int32 {
	if kind != inference.ModelInstanceGroup_KIND_CPU {
		return 1
	}
	return max(1, backends.Get(backend).CPUInstances)
}
