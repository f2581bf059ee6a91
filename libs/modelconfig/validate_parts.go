package modelconfig

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// outside reports a file that is not in the directory where it belongs.
func (r *report) outside(at, what, file, dir string) {
	r.invalid(at, "give a path within it, without ..", "%s '%s' leaves %s", what, file, dir)
}

// validateFiles keeps paths within the model's directory.
func (r *report) validateFiles(c *inference.ModelConfig) {
	if name := c.GetDefaultModelFilename(); name != "" && !filepath.IsLocal(name) {
		r.outside("default_model_filename", "default_model_filename", name, "the version directory")
	}
	for i, out := range c.GetOutput() {
		if name := out.GetLabelFilename(); name != "" && !filepath.IsLocal(name) {
			r.add(errs.Unsupported, index("output", i)+".label_filename", "give a path within it, without ..",
				fmt.Sprintf("label_filename '%s' leaves the model directory for %s", name, r.model))
		}
	}
	capability := regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	for _, key := range sortedKeys(c.GetCcModelFilenames()) {
		name, at := c.GetCcModelFilenames()[key], entry("cc_model_filenames", key)
		if !capability.MatchString(key) {
			r.invalid(at, capabilityFix(key), "cc_model_filenames key '%s' is not a CUDA compute capability", key)
		}
		if name == "" || !filepath.IsLocal(name) {
			r.outside(at, "the file of cc_model_filenames", name, "the version directory")
		}
	}
}

// capabilityFix reads the forms in which compilers name a capability: 75,
// sm_75, compute_90.
func capabilityFix(key string) string {
	digits := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(key, "compute_"), "sm"), "_")
	if regexp.MustCompile(`^[0-9]{2,3}$`).MatchString(digits) {
		return fmt.Sprintf("did you mean \"%s.%s\"?", digits[:len(digits)-1], digits[len(digits)-1:])
	}
	return "write it as \"7.5\""
}

// validateBatchTensors checks the inputs and outputs that describe a batch.
func (r *report) validateBatchTensors(c *inference.ModelConfig) {
	inputs, taken := make(map[string]*inference.ModelInput), make(map[string]bool)
	for _, in := range c.GetInput() {
		inputs[in.GetName()], taken[in.GetName()] = in, true
	}
	for i, in := range c.GetBatchInput() {
		at := index("batch_input", i)
		if _, known := inference.BatchInput_Kind_name[int32(in.GetKind())]; !known {
			r.invalid(at+".kind", "for example BATCH_ELEMENT_COUNT", "unknown batch input kind %d", int32(in.GetKind()))
		}
		r.validateTargets(at, "batch input", in.GetTargetName(), taken)
		if d := in.GetDataType(); d != inference.DataType_TYPE_INT32 && d != inference.DataType_TYPE_FP32 {
			r.invalid(at+".data_type", "use TYPE_INT32 or TYPE_FP32", "unexpected data type %s for batch input", d)
		}
		r.validateSources(at, fmt.Sprintf("batch input kind '%s'", in.GetKind()), in.GetSourceInput(), inputs)
	}
	r.validateBatchOutputs(c, inputs)
}

func (r *report) validateBatchOutputs(c *inference.ModelConfig, inputs map[string]*inference.ModelInput) {
	outputs, taken := make(map[string]*inference.ModelOutput), make(map[string]bool)
	for _, out := range c.GetOutput() {
		outputs[out.GetName()] = out
	}
	for i, out := range c.GetBatchOutput() {
		at := index("batch_output", i)
		if _, known := inference.BatchOutput_Kind_name[int32(out.GetKind())]; !known {
			r.invalid(at+".kind", "use BATCH_SCATTER_WITH_INPUT_SHAPE", "unknown batch output kind %d", int32(out.GetKind()))
		}
		r.validateTargets(at, "batch output", out.GetTargetName(), taken)
		r.validateSources(at, fmt.Sprintf("batch output kind '%s'", out.GetKind()), out.GetSourceInput(), inputs)
		for j, name := range out.GetTargetName() {
			place := index(at+".target_name", j)
			if outputs[name] == nil {
				r.invalid(place, "name an output of the configuration", "unknown target name '%s' for batch output", name)
			} else if len(out.GetSourceInput()) == 1 && inputs[out.GetSourceInput()[0]] != nil {
				r.validateScatter(place, outputs[name], inputs[out.GetSourceInput()[0]])
			}
		}
	}
}

// validateTargets checks the names of tensors that the server makes or takes
// apart; taken collects those that something else does already.
func (r *report) validateTargets(at, subject string, names []string, taken map[string]bool) {
	if len(names) == 0 {
		r.invalid(at+".target_name", "name the model's tensor", "%s must specify 'target_name'", subject)
	}
	for j, name := range names {
		if taken[name] {
			r.invalid(index(at+".target_name", j), "name each tensor once", "%s target name '%s' is specified more than once", subject, name)
		}
		taken[name] = true
	}
}

// validateScatter makes sure that the variable dimensions of a batch output are
// those of its source input at the same places.
func (r *report) validateScatter(at string, out *inference.ModelOutput, source *inference.ModelInput) {
	for k, d := range backendDims(out) {
		if dims := backendDims(source); d == variable && k >= len(dims) {
			r.invalid(at, "give the size of the dimension, or a source input that has it",
				"batch output '%s' has a variable dimension %d, but its source input '%s' has %d dimensions", out.GetName(), k, source.GetName(), len(dims))
		}
	}
}

// backendDims are the dimensions that the backend sees.
func backendDims(t declared) []int64 {
	if t.GetReshape() != nil {
		return t.GetReshape().GetShape()
	}
	return t.GetDims()
}

func (r *report) validateSources(at, subject string, sources []string, inputs map[string]*inference.ModelInput) {
	if len(sources) != 1 {
		r.invalid(at+".source_input", "name the input that it is computed from", "%s expects 1 source input, got %d", subject, len(sources))
	}
	for j, name := range sources {
		if inputs[name] == nil {
			r.invalid(index(at+".source_input", j), "name an input of the configuration", "unknown source input name '%s' for %s", name, subject)
		}
	}
}

// validateMetrics checks the buckets of histograms.
func (r *report) validateMetrics(m *inference.ModelMetrics) {
	for i, control := range m.GetMetricControl() {
		at := index("model_metrics.metric_control", i)
		if control.GetMetricIdentifier() == nil {
			r.invalid(at+".metric_identifier", "add metric_identifier { family: \"nv_inference_first_response_histogram_ms\" }", "metric control must specify 'metric_identifier'")
		} else if control.GetMetricIdentifier().GetFamily() == "" {
			r.invalid(at+".metric_identifier", "for example family: \"nv_inference_first_response_histogram_ms\"", "metric identifier must specify 'family'")
		}
		if control.GetHistogramOptions() == nil {
			r.invalid(at+".histogram_options", "add histogram_options with its buckets", "metric control must specify 'histogram_options'")
			continue
		}
		r.validateBuckets(at+".histogram_options", control.GetHistogramOptions().GetBuckets())
	}
}

func (r *report) validateBuckets(at string, buckets []float64) {
	if len(buckets) == 0 {
		r.invalid(at+".buckets", "list the upper bounds, such as buckets: [ 10, 100, 1000 ]", "histogram options must specify 'buckets'")
	}
	for i := 1; i < len(buckets); i++ {
		if !(buckets[i] > buckets[i-1]) { // NaN neither
			r.invalid(index(at+".buckets", i), "list the upper bounds from small to large, each once", "histogram buckets must ascend")
			return
		}
	}
}

// validateAccelerators checks the accelerators that the backend knows.
func (r *report) validateAccelerators(c *inference.ModelConfig) {
	d, a := backends.Get(c.GetBackend()), c.GetOptimization().GetExecutionAccelerators()
	r.validateAcceleratorList("gpu_execution_accelerator", a.GetGpuExecutionAccelerator(), &d, d.GPUAccelerators)
	r.validateAcceleratorList("cpu_execution_accelerator", a.GetCpuExecutionAccelerator(), &d, d.CPUAccelerators)
}

func (r *report) validateAcceleratorList(field string, list []*inference.ModelOptimizationPolicy_ExecutionAccelerators_Accelerator, d *backends.Descriptor, known []string) {
	if known == nil {
		return
	}
	for i, a := range list {
		at := index("optimization.execution_accelerators."+field, i)
		if !slices.Contains(known, a.GetName()) {
			r.invalid(at, diagnostics.Dictionary{}.Suggest(a.GetName(), known), "unknown Execution Accelerator '%s' is requested", a.GetName())
			continue
		}
		if d.CheckAccelerator == nil {
			continue
		}
		for _, fault := range d.CheckAccelerator(a.GetName(), a.GetParameters()) {
			r.invalid(entry(at+".parameters", fault.Parameter), fault.Fix, "%s", fault.Message)
		}
	}
}

func (r *report) validateAgents(c *inference.ModelConfig) {
	for i, a := range c.GetModelRepositoryAgents().GetAgents() {
		if a.GetName() == "" {
			r.invalid(index("model_repository_agents.agents", i), "for example name: \"checksum\"; a version policy is no agent but the section version_policy", "model repository agent must specify 'name'")
		}
	}
}

func (r *report) validateResources(at string, g *inference.ModelInstanceGroup) {
	for i, resource := range g.GetRateLimiter().GetResources() {
		if resource.GetName() == "" {
			r.invalid(index(at+".rate_limiter.resources", i), "name it as --rate-limit-resource does",
				"rate limiter resource of instance group %s must specify 'name'", g.GetName())
		}
	}
}

func (r *report) validateMetricTags(tags map[string]string) {
	label := regexp.MustCompile(`^[a-zA-Z0-9_]+$`)
	for _, name := range sortedKeys(tags) {
		if !label.MatchString(name) {
			r.invalid(entry("metric_tags", name), "use letters, digits and underscores", "metric tag '%s' cannot be a metric label", name)
		}
	}
}

// validateResponseCache refuses the cache for models whose responses depend on
// more than the request.
func (r *report) validateResponseCache(c *inference.ModelConfig) {
	if !c.GetResponseCache().GetEnable() {
		return
	}
	const text = "Response Cache does not currently support model %s with %s"
	if c.GetModelTransactionPolicy().GetDecoupled() {
		r.wrong("response_cache.enable", "disable one of the two", text, r.model, "'decoupled' transaction policy")
	}
	if c.GetSequenceBatching() != nil {
		r.wrong("response_cache.enable", "disable one of the two", text, r.model, "sequence batching scheduler")
	}
}

// validateParameters checks the parameters that the backend knows.
func (r *report) validateParameters(c *inference.ModelConfig) {
	check := backends.Get(c.GetBackend()).CheckParameters
	if check == nil {
		return
	}
	parameters := make(map[string]string, len(c.GetParameters()))
	for key, value := range c.GetParameters() {
		parameters[key] = value.GetStringValue()
	}
	for _, fault := range check(parameters) {
		r.invalid(entry("parameters", fault.Parameter), fault.Fix, "%s", fault.Message)
	}
}
