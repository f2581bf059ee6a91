package modelconfig

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// FromProto returns the view of a configuration, such as one from the control plane. It neither
// changes nor retains c: missing fields are completed in a copy. The error is as [Validate]'s,
// but inputs and outputs may be missing: [Load] leaves them out for a backend that there is
// not.
func FromProto(c *inference.ModelConfig) (*Config, error) {
	c = proto.CloneOf(c)
	if c == nil {
		c = new(inference.ModelConfig)
	}
	Normalize(c, Directory{Name: c.GetName()})
	if err := validate(c, c.GetName()).AsError(c.GetName()); err != nil {
		return nil, err
	}
	return view(c), nil
}

// view converts a valid configuration; it takes c's memory.
func view(c *inference.ModelConfig) *Config {
	v := &Config{
		Name:                c.GetName(),
		Platform:            c.GetPlatform(),
		Backend:             c.GetBackend(),
		MaxBatchSize:        int64(c.GetMaxBatchSize()),
		Batching:            batching(c.GetDynamicBatching()),
		Sequences:           sequences(c),
		Ensemble:            ensemble(c.GetEnsembleScheduling()),
		Decoupled:           c.GetModelTransactionPolicy().GetDecoupled(),
		Cached:              c.GetResponseCache().GetEnable(),
		CapabilityFilenames: c.GetCcModelFilenames(),
		Filename:            c.GetDefaultModelFilename(),
		Parameters:          make(map[string]string, len(c.GetParameters())),
		GraphLevel:          c.GetOptimization().GetGraph().GetLevel(),
		MetricTags:          c.GetMetricTags(),
		source:              c,
	}
	for _, in := range c.GetInput() {
		io := tensorView(in)
		io.Optional, io.Ragged = in.GetOptional(), in.GetAllowRaggedBatch()
		v.Inputs = append(v.Inputs, io)
	}
	for _, out := range c.GetOutput() {
		io := tensorView(out)
		io.LabelFile = out.GetLabelFilename()
		v.Outputs = append(v.Outputs, io)
	}
	for _, in := range c.GetBatchInput() {
		v.BatchInputs = append(v.BatchInputs, BatchInput{
			Kind: BatchInputKind(in.GetKind()), Targets: in.GetTargetName(), Source: in.GetSourceInput()[0], Datatype: datatype(in.GetDataType()),
		})
	}
	for _, out := range c.GetBatchOutput() {
		v.BatchOutputs = append(v.BatchOutputs, BatchOutput{Targets: out.GetTargetName(), Source: out.GetSourceInput()[0]})
	}
	for _, g := range c.GetInstanceGroup() {
		v.Groups = append(v.Groups, group(c.GetBackend(), g))
	}
	for name, p := range c.GetParameters() {
		v.Parameters[name] = p.GetStringValue()
	}
	v.Placement = PlacementOf(c)
	v.Padding = paddingOf(c)
	accelerators := c.GetOptimization().GetExecutionAccelerators()
	v.CPUAccelerators = acceleratorsOf(accelerators.GetCpuExecutionAccelerator())
	v.GPUAccelerators = acceleratorsOf(accelerators.GetGpuExecutionAccelerator())
	v.Shared = v.Parameters[ShareInFlightKey] == "true"
	v.HistogramBuckets = histogramBuckets(c.GetModelMetrics())
	v.Warmup = warmup(c.GetModelWarmup())
	return v
}

func tensorView(t declared) IO {
	io := IO{Name: t.GetName(), Datatype: datatype(t.GetDataType()), Dims: t.GetDims()}
	if t.GetReshape() != nil {
		io.HasReshape = true
		io.Reshape = append(tensor.Shape{}, t.GetReshape().GetShape()...)
	}
	return io
}

func batching(b *inference.ModelDynamicBatching) *DynamicBatching {
	if b == nil {
		return nil
	}
	v := &DynamicBatching{
		MaxQueueDelayMicros: b.GetMaxQueueDelayMicroseconds(),
		PreserveOrdering:    b.GetPreserveOrdering(),
		DefaultPolicy:       queuePolicy(b.GetDefaultQueuePolicy()),
		PreferredSizes:      ascending(b.GetPreferredBatchSize()),
	}
	if b.GetPriorityLevels() > 0 {
		priorities(v, b)
	}
	return v
}

func priorities(v *DynamicBatching, b *inference.ModelDynamicBatching) {
	v.PriorityLevels, v.DefaultPriority = b.GetPriorityLevels(), b.GetDefaultPriorityLevel()
	v.Policies = make(map[uint64]QueuePolicy, len(b.GetPriorityQueuePolicy()))
	for level, p := range b.GetPriorityQueuePolicy() {
		v.Policies[level] = queuePolicy(p)
	}
}

func queuePolicy(p *inference.ModelQueuePolicy) QueuePolicy {
	return QueuePolicy{
		Delay:                p.GetTimeoutAction() == inference.ModelQueuePolicy_DELAY,
		DefaultTimeoutMicros: p.GetDefaultTimeoutMicroseconds(),
		AllowTimeoutOverride: p.GetAllowTimeoutOverride(),
		MaxQueueSize:         p.GetMaxQueueSize(),
	}
}

func group(backend string, g *inference.ModelInstanceGroup) InstanceGroup {
	v := InstanceGroup{
		Name:       g.GetName(),
		Kind:       kind(g.GetKind()),
		Count:      max(int(g.GetCount()), 1),
		GPUs:       g.GetGpus(),
		Profiles:   g.GetProfile(),
		Passive:    g.GetPassive(),
		HostPolicy: g.GetHostPolicy(),
		Priority:   max(g.GetRateLimiter().GetPriority(), 1),
	}
	if g.GetCount() < 1 {
		v.CPUCount = int(defaultCount(backend, inference.ModelInstanceGroup_KIND_CPU))
	}
	for _, r := range g.GetRateLimiter().GetResources() {
		v.Resources = append(v.Resources, Resource{Name: strings.ToLower(r.GetName()), Global: r.GetGlobal(), Count: r.GetCount()})
	}
	return v
}

// Shown returns the configuration as clients see it after placement: groups without a kind of
// device are on these GPUs, or on CPUs if there are none.
func (c *Config) Shown(gpus []int32) *Config {
	open := func(g *inference.ModelInstanceGroup) bool {
		return g.GetKind() == inference.ModelInstanceGroup_KIND_AUTO
	}
	if !slices.ContainsFunc(c.source.GetInstanceGroup(), open) {
		return c
	}
	shown := *c
	shown.source = proto.CloneOf(c.source)
	for _, g := range shown.source.GetInstanceGroup() {
		if !open(g) {
			continue
		}
		g.Kind, g.Gpus = inference.ModelInstanceGroup_KIND_CPU, nil
		if len(gpus) > 0 {
			g.Kind, g.Gpus = inference.ModelInstanceGroup_KIND_GPU, gpus
		}
		if g.GetCount() < 1 {
			g.Count = defaultCount(c.Backend, g.GetKind())
		}
	}
	return &shown
}

func histogramBuckets(m *inference.ModelMetrics) map[string][]float64 {
	if len(m.GetMetricControl()) == 0 {
		return nil
	}
	buckets := make(map[string][]float64, len(m.GetMetricControl()))
	for _, c := range m.GetMetricControl() {
		buckets[c.GetMetricIdentifier().GetFamily()] = c.GetHistogramOptions().GetBuckets()
	}
	return buckets
}

func kind(k inference.ModelInstanceGroup_Kind) DeviceKind {
	switch k {
	case inference.ModelInstanceGroup_KIND_GPU:
		return KindGPU
	case inference.ModelInstanceGroup_KIND_CPU:
		return KindCPU
	case inference.ModelInstanceGroup_KIND_MODEL:
		return KindModel
	}
	return KindAuto
}

func acceleratorsOf(listed []*inference.ModelOptimizationPolicy_ExecutionAccelerators_Accelerator) (list []Accelerator) {
	for _, a := range listed {
		list = append(list, Accelerator{a.GetName(), a.GetParameters()})
	}
	return list
}
