package core

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
)

// Repository loads and unloads models on request; the registry's leader implements it. Its methods return when
// every gateway and scheduler knows the outcome, or with the context's error while the operation continues.
type Repository interface {
	// Load loads or reloads a model. A non-empty config replaces its configuration, in JSON. files, keyed by
	// path within the model's directory, replace the directory. Load may retain the files.
	Load(ctx context.Context, model, config string, files map[string][]byte) error
	// Unload unloads a model and, with dependents, the models that were loaded only for it.
	Unload(ctx context.Context, model string, dependents bool) error
}

// LoadRequest asks for a model to be loaded.
type LoadRequest struct {
	Model string
	// Config replaces the model's configuration if HasConfig is set.
	Config    string
	HasConfig bool
	// Files replace the model's directory, keyed by path within it.
	Files map[string][]byte
}

// MaxControlParameters bounds the parameters of a load or unload: the files and the configuration. They are
// counted before any is decoded.
const MaxControlParameters = modelfiles.MaxLoadFiles + 1

// LoadModel loads a model and returns when it is ready or has failed.
func (g *Gateway) LoadModel(ctx context.Context, r LoadRequest) error {
	if g.repository == nil {
		return noRepository()
	}
	if r.HasConfig && r.Config == "" {
		return errs.New(errs.InvalidParameter, "Invalid config override: it is empty").WithModel(r.Model)
	}
	if len(r.Files) > modelfiles.MaxLoadFiles {
		return modelfiles.TooManyLoadFiles(r.Model)
	}
	return contextError(ctx, g.repository.Load(ctx, r.Model, r.Config, r.Files))
}

// UnloadModel unloads a model.
func (g *Gateway) UnloadModel(ctx context.Context, model string, dependents bool) error {
	if g.repository == nil {
		return noRepository()
	}
	return contextError(ctx, g.repository.Unload(ctx, model, dependents))
}

func noRepository() error {
	return errs.New(errs.ModelControlDisabled, "this gateway has no registry to load or unload models: ask one that has")
}

// contextError returns a timeout or cancellation if err is the context's error.
func contextError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errs.Classified(err) {
		return abandoned(ctx)
	}
	return err
}
