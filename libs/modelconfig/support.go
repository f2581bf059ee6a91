package modelconfig

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/backends"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// checksumAgent is the repository agent that the registry itself is.
const checksumAgent = "checksum"

// validateSupport refuses, one by one, what the format allows and this server
// does not do. Silence would serve a different model than the file describes.
// Settings that responses do not depend on are accepted, and [Unused] lists them.
func (r *report) validateSupport(c *inference.ModelConfig) {
	for _, s := range unsupportedSections(c) {
		if s.used {
			r.unsupported(s.field, s.fix)
		}
	}
	for _, f := range backends.Get(c.GetBackend()).Formats {
		if f.Instead != "" && f.Is(c.GetPlatform()) {
			r.unsupported("platform", f.Instead)
		}
	}
	if !supportedRuntime(c) {
		r.unsupported("runtime", "remove it; shared objects are not loaded as backends, and the code of a Python-based one is model.py in the backend directory")
	}
	if c.GetParameters()["TRITON_BATCH_STRATEGY_PATH"] != nil {
		r.unsupported("parameters.TRITON_BATCH_STRATEGY_PATH", "remove it and set dynamic_batching; shared objects are not loaded as batching strategies")
	}
	for i, in := range c.GetInput() {
		r.tensorSupport(index("input", i), in.GetIsShapeTensor(), in.GetIsNonLinearFormatIo())
	}
	for i, out := range c.GetOutput() {
		r.tensorSupport(index("output", i), out.GetIsShapeTensor(), out.GetIsNonLinearFormatIo())
	}
	for i, a := range c.GetModelRepositoryAgents().GetAgents() {
		if a.GetName() != "" && a.GetName() != checksumAgent {
			r.unsupported(index("model_repository_agents.agents", i), "remove it, and change the files before they enter the repository; shared objects are not loaded as agents, and checksum is the only one that there is")
		}
	}
	for i, g := range c.GetInstanceGroup() {
		if len(g.GetSecondaryDevices()) > 0 {
			r.unsupported(index("instance_group", i)+".secondary_devices", "remove it")
		}
	}
}

// supportedRuntime reports whether the runtime, if any, is what the backend is run by
// anyway.
func supportedRuntime(c *inference.ModelConfig) bool {
	switch c.GetRuntime() {
	case "", "libtriton_" + c.GetBackend() + ".so":
		return true
	case pythonRuntime:
		return !backends.Get(c.GetBackend()).BuiltIn
	}
	return false
}

func (r *report) tensorSupport(at string, shapeTensor, nonLinear bool) {
	if shapeTensor {
		r.unsupported(at+".is_shape_tensor", "remove it; it is for TensorRT engines")
	}
	if nonLinear {
		r.unsupported(at+".is_non_linear_format_io", "remove it; it is for TensorRT engines")
	}
}

type section struct {
	field string
	used  bool
	fix   string
}

func unsupportedSections(c *inference.ModelConfig) []section {
	d := backends.Get(c.GetBackend())
	accelerators := c.GetOptimization().GetExecutionAccelerators()
	return []section{
		{"batch_input", len(c.GetBatchInput()) > 0 && !d.BatchTensors, "remove it and send the values as inputs"},
		{"batch_output", len(c.GetBatchOutput()) > 0 && !d.BatchTensors, "remove it"},
		{"model_operations.op_library_filename", len(c.GetModelOperations().GetOpLibraryFilename()) > 0, "use a model of standard operators"},
		{"optimization.execution_accelerators.cpu_execution_accelerator", len(accelerators.GetCpuExecutionAccelerator()) > 0 && d.CPUAccelerators == nil, "remove it to run on the default CPU provider"},
		{"optimization.cuda.graphs", c.GetOptimization().GetCuda().GetGraphs(), "remove it; it is for TensorRT engines"},
	}
}

// Unused lists the settings of a valid configuration that have no effect, with the reason, one
// sentence for each.
func Unused(c *inference.ModelConfig) (sentences []string) {
	for _, s := range []struct {
		setting string
		used    bool
		why     string
	}{
		{"optimization.priority", c.GetOptimization().GetPriority() != inference.ModelOptimizationPolicy_PRIORITY_DEFAULT, "models have no priority over one another"},
		{"optimization.execution_accelerators.gpu_execution_accelerator", len(c.GetOptimization().GetExecutionAccelerators().GetGpuExecutionAccelerator()) > 0 && !onGPU(c), "instances on CPUs run without it"},
	} {
		if s.used {
			sentences = append(sentences, s.setting+" has no effect: "+s.why)
		}
	}
	return sentences
}

func onGPU(c *inference.ModelConfig) bool {
	return slices.ContainsFunc(c.GetInstanceGroup(), func(g *inference.ModelInstanceGroup) bool {
		return g.GetKind() == inference.ModelInstanceGroup_KIND_GPU
	})
}
