package infer

import "context"

// Control loads and unloads models on behalf of models, and says whether they are
// ready. It is safe for concurrent use.
type Control interface {
	// LoadModel loads or reloads a model, and returns when it is ready or has failed.
	// A config that is not empty replaces its configuration, in JSON, and files, by
	// their paths within the model's directory, replace the directory; it may retain
	// the files. Models are loaded and unloaded under explicit control only.
	LoadModel(ctx context.Context, model, config string, files map[string][]byte) error
	// UnloadModel unloads a model and, with dependents, the models that were loaded
	// for it alone.
	UnloadModel(ctx context.Context, model string, dependents bool) error
	// ModelReady reports whether a version takes requests; an empty one is any.
	ModelReady(model, version string) (bool, error)
}
