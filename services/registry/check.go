package registry

import (
	"context"
	"net/url"
	"path/filepath"

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
// found of each model, in the order of names. The error is that of the
// configuration, of a repository that cannot be listed, or ctx's.
func Check(ctx context.Context, cfg Config) ([]Checked, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	snap, err := repo.New(cfg.Repositories, cfg.reading()).Scan(ctx, nil)
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
	for _, v := range m.Versions {
		if v.Problem != "" {
			c.Problems = append(c.Problems, modelconfig.Problem{File: filepath.Base(v.URL), Message: v.Problem})
			continue
		}
		c.Versions = append(c.Versions, v.Number)
	}
	if m.Config == nil {
		return c
	}
	config, err := modelconfig.FromProto(m.Config)
	if err != nil { // the scan has checked it
		c.Problems = append(c.Problems, modelconfig.ProblemsOf(err)...)
		return c
	}
	c.Config = config
	return c
}

// directory is the path of a file URL.
func directory(location string) string {
	u, err := url.Parse(location)
	if err != nil {
		return location
	}
	return filepath.FromSlash(u.Path)
}
