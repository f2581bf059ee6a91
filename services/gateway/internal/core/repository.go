package core

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
)

// Repository loads and unloads models on request: the registry's leader. Its
// methods return when every gateway and scheduler knows the outcome, or with
// the error of the context while the operation goes on.
type Repository interface {
	// Load loads a model, or loads it anew: with config as its configuration in
	// JSON unless that is empty, and of files, by their paths within the model's
	// directory, unless there are none. It may keep the files.
	Load(ctx context.Context, model, config string, files map[string][]byte) error
	// Unload takes a model out of service, and with dependents also the models
	// that were loaded for it alone.
	Unload(ctx context.Context, model string, dependents bool) error
}

// LoadRequest asks for a model to be loaded.
type LoadRequest struct {
	Model string
	// Config replaces the model's configuration where HasConfig says so.
	Config    string
	HasConfig bool
	// Files replace the model's directory, by path within it.
	Files map[string][]byte
}

// MaxControlParameters bounds the parameters of a load or unload, which are counted
// before any is read: the files and the configuration.
const MaxControlParameters = modelfiles.MaxGiven + 1

// LoadModel loads a model and returns when it serves or has failed.
func (g *Gateway) LoadModel(ctx context.Context, r LoadRequest) error {
	if g.repository == nil {
		return noRepository()
	}
	if r.HasConfig && r.Config == "" {
		return errs.New(errs.InvalidParameter, "Invalid config override: it is empty").WithModel(r.Model)
	}
	if len(r.Files) > modelfiles.MaxGiven {
		return modelfiles.TooManyGiven(r.Model)
	}
	return interrupted(ctx, g.repository.Load(ctx, r.Model, r.Config, r.Files))
}

// UnloadModel takes a model out of service.
func (g *Gateway) UnloadModel(ctx context.Context, model string, dependents bool) error {
	if g.repository == nil {
		return noRepository()
	}
	return interrupted(ctx, g.repository.Unload(ctx, model, dependents))
}

func noRepository() error {
	return errs.New(errs.ModelControlDisabled, "this gateway has no registry to load or unload models: ask one that has")
}

// interrupted words the end of a caller's patience.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errs.Of(err) == errs.Bug {
		return abandoned(ctx)
	}
	return err
}
