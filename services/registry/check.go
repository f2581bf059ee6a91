package registry

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// Checked is what [Check] found out about one model.
type Checked struct {
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
// all files of the versions that it would serve included, and tells what it
// found of each model, in the order of names. It also holds configurations
// against the headers of ONNX models, as a worker does against the models that
// it has loaded. The error is that of the
// configuration, of a repository that cannot be listed, or ctx's.
func Check(ctx context.Context, cfg Config) ([]Checked, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	roots, err := cfg.roots()
	if err != nil {
		return nil, err
	}
	snap, err := repo.New(roots, cfg.reading()).Scan(ctx, nil)
	if err != nil {
		return nil, err
	}
	models := make([]Checked, len(snap.Models))
	for i, m := range snap.Models {
		models[i] = checked(m)
	}
	return models, nil
}

func checked(m snapshot.Model) Checked {
	c := Checked{Name: m.Name, Dir: directory(m.URL), Problems: m.Problems, Warnings: m.Warnings}
	if m.Config != nil {
		config, err := modelconfig.FromProto(m.Config)
		if err != nil { // the scan has checked it
			c.Problems = append(c.Problems, modelconfig.ProblemsOf(err)...)
			return c
		}
		c.Config = config
	}
	for _, v := range m.Versions {
		problems := checkVersion(c.Config, v)
		if len(problems) == 0 {
			c.Versions = append(c.Versions, v.Number)
		}
		c.Problems = append(c.Problems, problems...)
	}
	return c
}

// checkVersion tells what keeps a version from being loaded, as far as its
// files show that.
func checkVersion(c *modelconfig.Config, v snapshot.Version) modelconfig.Problems {
	dir := strconv.FormatInt(v.Number, 10)
	if v.Problem != "" {
		return modelconfig.Problems{{Reason: errs.ConfigInvalid, File: dir, Message: v.Problem}}
	}
	if c == nil || c.Backend != "onnxruntime" {
		return nil
	}
	file := filepath.Join(dir, c.Filename)
	h, err := repo.ReadHeader(repo.Local{}, filepath.Join(directory(v.URL), c.Filename))
	if err != nil {
		return modelconfig.Problems{{
			Reason: errs.ConfigInvalid, File: file, Message: fmt.Sprintf("the model file of '%s' cannot be read: %v", c.Name, err),
			Fix: "export the model again, or name its file by default_model_filename",
		}}
	}
	return modelconfig.Compare(c, h, file)
}

// directory is the path of a file URL.
func directory(location string) string {
	u, err := url.Parse(location)
	if err != nil {
		return location
	}
	return filepath.FromSlash(u.Path)
}
