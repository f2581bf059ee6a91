package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/place"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// CheckResult is what [Check] found out about one model.
type CheckResult struct {
	Name string
	// Dir is the model's directory; empty if it has several.
	Dir string
	// Config is the configuration as served; nil if it has problems.
	Config *modelconfig.Config
	// Versions are those that would be served, ascending.
	Versions []int64
	// Problems are all of the model's. One with nothing but a version's
	// problems is served in its other versions.
	Problems modelconfig.Problems
	// Warnings are what its owner should know although it can be served.
	Warnings []string
}

// Check reads model repositories as a registry of this configuration would,
// but for the files of versions, which are only opened, and returns what it found
// of each model, in the order of names, and what it ignored. It also holds
// configurations against the headers of ONNX models, as a worker does against
// the models that it has loaded, and against workers with the configured backends,
// of which one is on the CPUs and each other on one of so many GPUs. No model's code is run. The error is that of the configuration, of a repository
// that cannot be listed, or ctx's.
func Check(ctx context.Context, cfg Config, gpus int) (models []CheckResult, ignored []string, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, nil, err
	}
	roots, err := cfg.roots()
	if err != nil {
		return nil, nil, err
	}
	reading := cfg.reading()
	reading.Shallow = true
	var mu sync.Mutex
	unasked := make(map[infer.ModelID]bool) // guarded by mu
	reading.Ask = func(_ context.Context, d control.Draft) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		unasked[infer.ModelID{Namespace: d.Model.Namespace, Name: d.Model.Name}] = true
		return d.Config, nil
	}
	scanner := repo.New(roots, reading)
	if err := scanner.Check(ctx); err != nil {
		return nil, nil, err
	}
	snap, err := scanner.Scan(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	all := catalog.Configs(func(id infer.ModelID) *inference.ModelConfig {
		for i := range snap.Models {
			if snap.Models[i].ID() == id {
				return snap.Models[i].Config
			}
		}
		return nil
	})
	for _, m := range snap.Models {
		if composed := all.Compose(m); composed.Problem != m.Problem {
			m = composed
			scanner.Locate(directory(m.URL), m.Problems)
		} else if m.Config == nil && m.URL != "" {
			m.Problems = scanner.WithUnknownSteps(directory(m.URL), m.Name, m.Problems, func(namespace, model string) bool {
				id := catalog.StepModel(m.ID(), namespace, model)
				return slices.ContainsFunc(snap.Models, func(of catalog.Model) bool { return of.ID() == id })
			})
		}
		if unasked[m.ID()] {
			m.Warnings = append(m.Warnings, "no code is run here: whether the model can be loaded, and what its auto_complete_config adds to inputs, outputs and batching, is not checked")
		}
		models = append(models, checked(m, cfg.Backends, gpus, scanner.Files()))
	}
	return models, snap.Ignored, nil
}

func checked(m catalog.Model, backends []string, gpus int, from repo.Files) CheckResult {
	c := CheckResult{Name: m.Name, Dir: directory(m.URL), Problems: m.Problems, Warnings: m.Warnings}
	if m.Config != nil {
		config, err := modelconfig.FromProto(m.Config)
		if err != nil { // the scan has checked it
			c.Problems = append(c.Problems, modelconfig.ProblemsOf(err)...)
			return c
		}
		c.Config = config
		c.Problems = append(c.Problems, placed(config, backends, gpus)...)
	}
	for _, v := range m.Versions {
		problems := checkVersion(c.Config, v, from)
		if len(problems) == 0 {
			c.Versions = append(c.Versions, v.Number)
		}
		c.Problems = append(c.Problems, problems...)
	}
	return c
}

// placed returns what keeps a model from workers with these backends, on the CPUs
// and on so many GPUs; nil are all backends.
func placed(c *modelconfig.Config, known []string, gpus int) (problems modelconfig.Problems) {
	if c.Ensemble != nil {
		return nil
	}
	if known != nil && !slices.Contains(known, c.Backend) {
		return append(problems, modelconfig.UnknownBackend(c.Backend, known))
	}
	workers := []place.Worker{{ID: "cpu", Kind: modelconfig.KindCPU}}
	for n := range gpus {
		workers = append(workers, place.Worker{ID: fmt.Sprintf("gpu%d", n), Kind: modelconfig.KindGPU, Number: int32(n)})
	}
	version := place.Version{Model: infer.ModelRef{Name: c.Name}, Groups: c.Groups} // of which pool and labels, workers decide
	cause, misplaced := place.Assign([]place.Version{version}, workers).Unplaced[version.Model]
	if d := backends.Get(c.Backend); !misplaced && gpus == 0 && d.BuiltIn && !d.CPU {
		cause, misplaced = fmt.Sprintf("backend %s runs on GPUs alone, and there are none", c.Backend), true
	}
	if misplaced {
		problems = append(problems, modelconfig.Problem{Reason: errs.ConfigInvalid, Field: "instance_group", Message: cause})
	}
	return problems
}

// checkVersion returns what keeps a version from being loaded, as far as its
// files show that.
func checkVersion(c *modelconfig.Config, v catalog.Version, from repo.Files) modelconfig.Problems {
	dir := strconv.FormatInt(v.Number, 10)
	if v.Problem != "" {
		return modelconfig.Problems{{Reason: errs.ConfigInvalid, File: dir, Message: v.Problem}}
	}
	if c == nil {
		return nil
	}
	d := backends.Get(c.Backend)
	if d.Header == nil {
		return nil
	}
	file := filepath.Join(dir, c.Filename)
	h, err := repo.ReadHeader(from, d, modelfiles.Join(directory(v.URL), c.Filename))
	if err != nil {
		fix := "export or copy the model again"
		if errors.Is(err, fs.ErrNotExist) {
			fix = "put it there, or name it by default_model_filename"
		}
		return modelconfig.Problems{{
			Reason: errs.ConfigInvalid, File: file, Message: fmt.Sprintf("the model file of '%s' cannot be read: %v", c.Name, err), Fix: fix,
		}}
	}
	if blob.Remote(v.URL) { // the scan found the weights, or reported what is missing
		return modelconfig.Compare(c, h, file)
	}
	return append(modelconfig.Compare(c, h, file), checkWeights(c.Name, directory(v.URL), file, h.External)...)
}

// checkWeights returns which files with weights of a model are missing, or are
// none that it may have: they must lie in its file's directory or below.
func checkWeights(model, versionDir, file string, weights []string) modelconfig.Problems {
	dir := filepath.Join(filepath.Dir(versionDir), filepath.Dir(file))
	if info, err := os.Stat(filepath.Join(filepath.Dir(versionDir), file)); err == nil && info.IsDir() {
		dir = filepath.Join(filepath.Dir(versionDir), file)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil // the header was read: it is gone since
	}
	defer root.Close()
	var problems modelconfig.Problems
	for _, name := range weights {
		info, err := root.Stat(name)
		if err == nil && !info.Mode().IsRegular() {
			err = errors.New("it is not a regular file")
		}
		if err != nil {
			problems = append(problems, modelconfig.Problem{
				Reason: errs.ConfigInvalid, File: file,
				Message: fmt.Sprintf("the weights of '%s' in '%s' cannot be read: %v", model, name, cause(err)),
				Fix:     "put the file beside the model, or below its directory, under the name by which the model was exported",
			})
		}
	}
	return problems
}

// cause is a file error without operation and path.
func cause(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// directory is the path of a file URL; another URL is one itself.
func directory(location string) string {
	u, err := url.Parse(location)
	if err != nil || blob.Remote(location) {
		return location
	}
	return filepath.FromSlash(u.Path)
}
