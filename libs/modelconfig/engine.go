package modelconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// engine is a backend that the format knows by its model file.
type engine struct {
	backend  string
	platform string // the legacy name; empty if the backend has none
	file     string // the default model file or directory
}

// engines lists the known backends in the order in which their files are
// looked for.
func engines() []engine {
	return []engine{
		{"tensorflow", "tensorflow_savedmodel", "model.savedmodel"},
		{"tensorflow", "tensorflow_graphdef", "model.graphdef"},
		{"tensorrt", "tensorrt_plan", "model.plan"},
		{engineONNX, "onnxruntime_onnx", "model.onnx"},
		{"openvino", "", "model.xml"},
		{"pytorch", "pytorch_libtorch", "model.pt"},
		{"pytorch", "torch_aoti", "model.pt2"},
		{"python", "", "model.py"},
	}
}

const (
	platformEnsemble = "ensemble"
	platformLibtorch = "libtorch" // another name of pytorch_libtorch
	enginePytorch    = "pytorch"
	engineONNX       = "onnxruntime"
)

// normaliseEngine fills in whichever of backend, platform and model file is
// missing: from each other, else from the files in the version directory, else
// from the model's name.
func normaliseEngine(c *inference.ModelConfig, files []string) {
	if c.GetPlatform() == platformEnsemble {
		return
	}
	e, ok := findEngine(c, files)
	if !ok {
		engineFromName(c)
		return
	}
	c.Backend = e.backend
	if c.GetPlatform() == "" {
		c.Platform = e.platform
	}
	if c.GetDefaultModelFilename() == "" {
		c.DefaultModelFilename = e.file
	}
}

func findEngine(c *inference.ModelConfig, files []string) (engine, bool) {
	for _, e := range engines() {
		if !e.fits(c) {
			continue
		}
		// A backend or platform that is given decides, except where several
		// engines share the backend: there the file does.
		named := c.GetPlatform() != "" || c.GetBackend() != "" && !sharesBackend(e)
		if named || slices.Contains(files, e.file) {
			return e, true
		}
	}
	if c.GetBackend() == enginePytorch && c.GetPlatform() == "" {
		return engine{enginePytorch, "pytorch_libtorch", "model.pt"}, true
	}
	return engine{}, false
}

// fits reports whether the given backend and platform, if any, are e's.
func (e engine) fits(c *inference.ModelConfig) bool {
	platform := c.GetPlatform()
	if platform == platformLibtorch {
		platform = "pytorch_libtorch"
	}
	return (c.GetBackend() == "" || c.GetBackend() == e.backend) && (platform == "" || platform == e.platform)
}

func sharesBackend(e engine) bool {
	return slices.ContainsFunc(engines(), func(o engine) bool { return o.backend == e.backend && o.file != e.file })
}

// engineFromName takes the backend from a model name such as m.echo.
func engineFromName(c *inference.ModelConfig) {
	if c.GetBackend() != "" || c.GetPlatform() != "" {
		return
	}
	if _, backend, ok := strings.Cut(c.GetName(), "."); ok && backend != "" {
		c.Backend = backend
		if c.GetDefaultModelFilename() == "" {
			c.DefaultModelFilename = "model." + backend
		}
	}
}

// validateEngine checks that a backend is known and goes with the platform.
func (r *report) validateEngine(c *inference.ModelConfig) {
	backend, platform := c.GetBackend(), c.GetPlatform()
	if platform == platformEnsemble {
		return // refused as a whole with its steps
	}
	if backend == "" && platform == "" {
		r.wrong("backend", "set backend, for example  backend: \"onnxruntime\"",
			"Invalid model name: Could not determine backend for model '%s' with no backend in model configuration. Expected model name of the form 'model.<backend_name>'.", c.GetName())
		return
	}
	if backend == "" {
		r.invalid("platform", suggest(platform, platforms()), "unexpected platform type '%s'", platform)
		return
	}
	known := slices.ContainsFunc(engines(), func(e engine) bool { return e.backend == backend })
	if known && platform != "" && !slices.ContainsFunc(engines(), func(e engine) bool { return e.fits(c) }) {
		r.invalid("platform", "remove platform, backend says it all", "unexpected 'platform' and 'backend' pair, got:%s, %s", platform, backend)
	}
}

// UnknownBackend is the problem of a model whose backend is not among those
// that there are.
func UnknownBackend(backend string, known []string) Problem {
	return Problem{
		Reason: errs.Unsupported, Field: "backend",
		Message: fmt.Sprintf("this server has no backend '%s': it has %s, and loads no shared objects as backends", backend, strings.Join(known, ", ")),
		Fix:     "export the model to ONNX and set backend to onnxruntime",
	}
}

func platforms() []string {
	var names []string
	for _, e := range engines() {
		if e.platform != "" {
			names = append(names, e.platform)
		}
	}
	return names
}
