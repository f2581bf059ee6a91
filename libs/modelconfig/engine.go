package modelconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

const platformEnsemble = "ensemble"

// pythonRuntime is the runtime of Python-based backends: the file with their code.
const pythonRuntime = "model.py"

// normalizeEngine fills in whichever of backend, platform and model file is
// missing: from each other, else from the files in the version directory, else
// from the model's name.
func normalizeEngine(c *inference.ModelConfig, files []string) {
	if c.GetPlatform() == platformEnsemble {
		return
	}
	backend, format, ok := findFormat(c, files)
	if !ok {
		engineFromName(c)
		return
	}
	c.Backend = backend
	if c.GetPlatform() == "" {
		c.Platform = format.Platform
	}
	if c.GetDefaultModelFilename() == "" {
		c.DefaultModelFilename = format.File
	}
}

// findFormat decides by what is given. Where that leaves several formats the
// files do, and without any of them the backend's standard format holds.
func findFormat(c *inference.ModelConfig, files []string) (backend string, format backends.Format, ok bool) {
	for _, d := range backends.All() {
		for _, f := range d.Formats {
			if !fits(c, d.Name, f) {
				continue
			}
			named := c.GetPlatform() != "" || c.GetBackend() != "" && len(d.Formats) == 1
			if named || slices.Contains(files, f.File) {
				return d.Name, f, true
			}
		}
	}
	if c.GetPlatform() != "" {
		return "", format, false
	}
	for _, f := range backends.Get(c.GetBackend()).Formats {
		if f.Standard {
			return c.GetBackend(), f, true
		}
	}
	return "", format, false
}

// fits reports whether the given backend and platform, if any, are those of the
// format.
func fits(c *inference.ModelConfig, backend string, f backends.Format) bool {
	return (c.GetBackend() == "" || c.GetBackend() == backend) && (c.GetPlatform() == "" || f.Is(c.GetPlatform()))
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
		r.invalid("platform", diagnostics.Dictionary{}.Suggest(platform, platforms()), "unexpected platform type '%s'", platform)
		return
	}
	formats := backends.Get(backend).Formats
	if len(formats) > 0 && platform != "" && !slices.ContainsFunc(formats, func(f backends.Format) bool { return f.Is(platform) }) {
		r.invalid("platform", "remove platform, backend says it all", "unexpected 'platform' and 'backend' pair, got:%s, %s", platform, backend)
	}
}

// UnknownBackend is the message for a model whose backend does not exist.
func UnknownBackend(backend string, known []string) Problem {
	return Problem{
		Reason: errs.Unsupported, Field: "backend",
		Message: fmt.Sprintf("this server has no backend '%s': it has %s, and loads no shared objects as backends", backend, strings.Join(known, ", ")),
		Fix: cmp.Or(backends.Get(backend).Instead,
			fmt.Sprintf("name by --backend-directory the directory that has %s/%s if it is Python-based, or export the model to ONNX and set backend to onnxruntime", backend, pythonRuntime)),
	}
}

func platforms() []string {
	var names []string
	for _, d := range backends.All() {
		for _, f := range d.Formats {
			if f.Platform != "" {
				names = append(names, f.Platform)
			}
		}
	}
	return names
}
