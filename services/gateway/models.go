package gateway

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

var (
	_ infer.Caller  = (*Gateway)(nil)
	_ infer.Control = (*Gateway)(nil)
)

// Call calls a model on behalf of a model in this process; see [infer.Caller].
func (g *Gateway) Call(c *infer.Call, receive func(*infer.Response)) (cancel func()) {
	if caller := g.calls.Load(); caller != nil {
		return caller.Call(c, receive)
	}
	c.Release()
	receive(&infer.Response{Final: true, Err: starting(c.Model)})
	return func() {}
}

// LoadModel loads a model on behalf of a model in this process; see [infer.Control].
func (g *Gateway) LoadModel(ctx context.Context, model, config string, files map[string][]byte) error {
	if engine := g.engine.Load(); engine != nil {
		return engine.LoadModel(ctx, core.LoadRequest{Model: model, Config: config, HasConfig: config != "", Files: files})
	}
	return starting(model)
}

// UnloadModel unloads a model on behalf of a model in this process; see [infer.Control].
func (g *Gateway) UnloadModel(ctx context.Context, model string, dependents bool) error {
	if engine := g.engine.Load(); engine != nil {
		return engine.UnloadModel(ctx, model, dependents)
	}
	return starting(model)
}

// ModelReady reports whether a version accepts requests; see [infer.Control].
func (g *Gateway) ModelReady(model, version string) (bool, error) {
	if engine := g.engine.Load(); engine != nil {
		return engine.ModelReady(model, version)
	}
	return false, nil
}

func starting(model string) error {
	return errs.New(errs.ModelNotReady, "model '%s' cannot be reached: the gateway starts", model).WithModel(model)
}
